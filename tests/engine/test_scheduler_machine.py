"""Any order of requests, aborts, failed steps and pins: every answer is whole, nothing leaks, nobody waits for ever."""

from __future__ import annotations

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from engine.batch import StepOutput
from engine.errors import InvalidRequestError
from prefixcache.hashing import namespace
from prefixcache.interface import Prompt, Scope
from tests.engine.test_scheduler import all_blocks_unreferenced, prompt_of
from tests.support.chain_runner import ChainRunner, expected_tokens
from tests.support.engine_factory import Transcript, add_request, make_engine

SCOPES = (Scope(namespace({"model": "test"}, scope="public"), 0),)
CELL = 16


class FlakyRunner(ChainRunner):
    """Fails the numbers of one answer when told to."""

    def __init__(self, **config: int) -> None:
        super().__init__(**config)
        self.spoil_next = False

    def execute(self, output):
        result = super().execute(output)
        if self.spoil_next and output.requests:
            self.spoil_next = False
            return StepOutput(result.token_ids, {output.requests[-1].request_id: "spoiled"})
        return result


class SchedulerMachine(RuleBasedStateMachine):
    @initialize(
        num_blocks=st.integers(8, 40),
        num_seqs=st.integers(1, 6),
        budget=st.integers(0, 40),
        chunk=st.sampled_from([0, 1, 5, 16]),
        threshold=st.sampled_from([0, 12, 512]),
        seconds=st.sampled_from([0.0, 0.01, None]),
        reserve=st.sampled_from([0, 8, 64]),
        cap=st.sampled_from([0.25, 0.5, 1.0]),
        deterministic=st.booleans(),
    )
    def start(self, num_blocks, num_seqs, budget, chunk, threshold, seconds, reserve, cap, deterministic):
        self.runner = FlakyRunner(num_blocks=num_blocks)
        self.engine, _ = make_engine(
            self.runner,
            growth_reserve=reserve,
            max_shared_ratio=cap,
            max_num_seqs=num_seqs,
            max_num_batched_tokens=num_seqs + (2 * CELL if deterministic else 0) + budget,
            prefill_chunk=CELL if deterministic else chunk,
            long_prefill_token_threshold=threshold,
            max_step_seconds=seconds,
            deterministic=deterministic,
        )
        self.deterministic = deterministic
        self.max_n = min(3, num_seqs)
        self.said = Transcript()
        self.wanted: dict[str, list[int]] = {}
        self.forgotten: set[str] = set()
        self.pins = []
        self.number = 0

    @rule(
        shared=st.integers(0, 60),
        family=st.integers(0, 1),
        own=st.integers(1, 40),
        max_tokens=st.integers(1, 30),
        n=st.integers(1, 3),
        tenant=st.sampled_from("abc"),
    )
    def add(self, shared, family, own, max_tokens, n, tenant):
        prompt = prompt_of(60, seed=family)[:shared] + prompt_of(own, seed=10 + self.number % 4)
        request_id, seed, n = str(self.number), self.number + 1, min(n, self.max_n)
        self.number += 1
        try:
            add_request(self.engine, request_id, prompt, max_tokens=max_tokens, n=n, seed=seed, tenant=tenant)
        except InvalidRequestError:
            return
        for index in range(n):
            key = f"{request_id}/{index}" if index else request_id
            self.wanted[key] = expected_tokens(prompt, max_tokens, seed=seed, index=index)

    @rule(count=st.integers(1, 8))
    def step(self, count):
        for _ in range(count):
            self.said.step(self.engine)

    @rule(data=st.data())
    def abort(self, data):
        victim = str(data.draw(st.integers(0, self.number)))
        self.engine.abort(victim)
        self.forgotten.add(victim)

    @rule()
    def spoil_an_answer(self):
        self.runner.spoil_next = True

    @rule(family=st.integers(0, 1))
    def pin(self, family):
        prompt = Prompt(np.array(prompt_of(60, seed=family), dtype=np.int32), b"", SCOPES, hash_epoch=0)
        if pin := self.engine.cache.pin(prompt).pin:
            self.pins.append(pin)

    @precondition(lambda self: self.pins)
    @rule()
    def unpin(self):
        self.engine.cache.unpin(self.pins.pop())

    @rule(cap=st.sampled_from([0.25, 0.5, 1.0]))
    def change_cap(self, cap):
        self.engine.cache.set_max_shared_ratio(cap)

    @invariant()
    def answers_are_right_so_far(self):
        for key, tokens in self.said.tokens.items():
            assert tokens == self.wanted[key][: len(tokens)]

    @invariant()
    def never_more_at_once_than_allowed(self):
        scheduler = self.engine.scheduler
        assert sum(r.num_sequences for r in scheduler._running) <= self.engine._config.scheduler.max_num_seqs
        for step in self.runner.steps[-8:]:
            num_tokens = sum(part.num_new_tokens for part in step.requests)
            assert num_tokens <= self.engine._config.scheduler.max_num_batched_tokens

    @invariant()
    def chunks_are_cells_of_the_grid_when_deterministic(self):
        if not self.deterministic:
            return
        for step in self.runner.steps[-8:]:
            for part in step.requests:
                end = part.num_computed_tokens + part.num_new_tokens
                assert end % CELL == 0 or part.sample or self.is_left_for_forks(part, end)

    def is_left_for_forks(self, part, end):
        request = self.engine.scheduler.find(part.request_id)
        return request is None or end == request.num_prompt_tokens - 1

    def teardown(self):
        if not hasattr(self, "engine"):
            return
        self.runner.spoil_next = False
        work = sum(len(tokens) + 110 for tokens in self.wanted.values())
        self.said.run(self.engine, max_steps=3 * work + 100)
        forgotten = self.forgotten | set(self.said.failed)
        for key, tokens in self.wanted.items():
            if key.partition("/")[0] not in forgotten:
                assert self.said.tokens[key] == tokens, key
        for pin in self.pins:
            self.engine.cache.unpin(pin)
        assert all_blocks_unreferenced(self.engine)
        self.engine.cache.check_integrity()
        room = self.engine.scheduler._waiting
        assert not len(room)
        assert not room._flight._waiters
        assert not room._flight._hopefuls
        assert not any(queue._tenants or queue.stalled for queue in room._queues.values())
        assert not list(self.engine.scheduler._answers)


SchedulerMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestScheduler = SchedulerMachine.TestCase
