"""Random lives of a small cache against a model that knows only tables, pins and what each KV slot must hold."""

from __future__ import annotations

import dataclasses
from contextlib import contextmanager, suppress
from itertools import count

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from prefixcache import (
    BlockStateError,
    BlockTable,
    Match,
    Pin,
    PrefixCache,
    PrefixCacheConfig,
    Priority,
    Prompt,
    Reason,
)
from prefixcache.hashing import xxh3_128
from tests.prefixcache.factories import BLOCK
from tests.prefixcache.fake_kv import FakeKV
from tests.prefixcache.machine_prompts import FORGERIES, SCOPES, prompts

HASHERS = {
    "xxh3": xxh3_128,
    "one bit": lambda data, seed: bytes([sum(data) & 1]) * 16,
    "constant": lambda data, seed: bytes(16),
}
ORDER_OF_BLOCKS = [
    *(Reason.DISABLED, Reason.HIT, Reason.SHARE_CAP, Reason.COPIED, Reason.NOT_READY),
    *(Reason.EVICTED, Reason.COLD_RESTART, Reason.BELOW_MIN_REUSE, Reason.DIVERGED, Reason.NEVER_CACHED),
]


class CacheMachine(RuleBasedStateMachine):
    """Allocate, append, match, fork, write, preempt, abort, finish, evict, pin, unpin, change the cap, crash."""

    def __init__(self) -> None:
        super().__init__()
        self.tables: list[BlockTable] = []
        self.matches: list[Match] = []
        self.pins: list[Pin] = []
        self.priorities: list[Priority] = []
        self.owners = count(1)
        self.computed_by: dict[int, int] = {}
        """Owner of the table that wrote or copied a block last."""
        self.can_end: set[BlockTable] = set()
        """Tables that the caller let in by `max_request_tokens`, and their forks."""

    @initialize(
        num_blocks=st.integers(4, 12),
        hasher=st.sampled_from(["xxh3", "xxh3", "xxh3", "one bit", "constant"]),
        policy=st.sampled_from(["lru", "priority"]),
        cap=st.sampled_from([0.0, 0.25, 0.5, 1.0]),
        growth_reserve=st.sampled_from([0, 0, 4, 16]),
        forgery=st.sampled_from([*["none"] * 4, *FORGERIES]),
    )
    def start(self, num_blocks, hasher, policy, cap, growth_reserve, forgery) -> None:
        config = PrefixCacheConfig(
            num_blocks,
            block_size=BLOCK,
            policy=policy,
            max_shared_ratio=cap,
            max_pinned_ratio=cap / 2,
            growth_reserve=growth_reserve,
            min_partial_tokens=3,
            ghost_factor=1,
        )
        self.cache = PrefixCache(config, hasher=HASHERS[hasher])
        self.kv = FakeKV(self.cache)
        self.forge = FORGERIES[forgery]
        self.is_good_hash = hasher == "xxh3" and forgery == "none"
        self.cap = self.ceiling = int(cap * num_blocks + 1e-9)
        self.max_pinned = int(cap / 2 * num_blocks + 1e-9)

    def find(self, prompt: Prompt) -> Match:
        return self.cache.match(self.forged(prompt))

    def forged(self, prompt: Prompt) -> Prompt:
        hashes = self.forge(prompt.token_ids, prompt.scopes) if prompt.block_hashes else b""
        return dataclasses.replace(prompt, block_hashes=hashes)

    def pick(self, items: list, data):
        return items[data.draw(st.integers(0, len(items) - 1))]

    def add(self, match: Match, max_new_tokens: int, num_sequences: int = 1) -> bool:
        promised = match.num_cached_tokens
        before = self.cache.snapshot()
        allocation = self.cache.admit(
            match, max_new_tokens=max_new_tokens, num_sequences=num_sequences, owner=next(self.owners)
        )
        if allocation is None:
            assert (match.num_cached_tokens, self.cache.snapshot()) == (promised, before)
            return False
        assert allocation.num_cached_tokens in (promised, len(match.chain) * BLOCK)
        assert allocation.num_cached_tokens < match.tokens.num_tokens
        assert sum(allocation.reasons.values()) == len(allocation.table.block_ids)
        assert list(allocation.reasons) == sorted(allocation.reasons, key=ORDER_OF_BLOCKS.index)
        num_hits = allocation.reasons.get(Reason.HIT, 0)
        assert allocation.table.block_ids[:num_hits] == match.chain[:num_hits]
        self.perform(allocation.copies, allocation.table)
        self.kv.check(allocation.table, allocation.num_cached_tokens)
        self.tables.append(allocation.table)
        if allocation.table.max_tokens <= self.cache.max_request_tokens():
            self.can_end.add(allocation.table)
        return True

    @precondition(lambda self: len(self.tables) < 4)
    @rule(prompt=prompts, max_new_tokens=st.integers(0, 20), num_sequences=st.integers(1, 2), prefill=st.booleans())
    def admit(self, prompt, max_new_tokens, num_sequences, prefill) -> None:
        with self.find(prompt) as match:
            if not self.add(match, max_new_tokens, num_sequences):
                self.preempt_youngest()
            elif prefill:
                self.step(self.tables[-1], match.tokens.num_tokens)

    @rule(prompt=prompts)
    def serve(self, prompt) -> None:
        with self.find(prompt) as match:
            if self.add(match, 0):
                self.step(self.tables[-1], match.tokens.num_tokens)
            self.preempt_youngest()

    def preempt_youngest(self) -> None:
        if self.tables:
            self.cache.free(self.tables.pop())

    @rule(prompt=prompts)
    def match(self, prompt) -> None:
        if len(self.matches) < 3:
            self.matches.append(self.find(prompt))

    @precondition(lambda self: self.matches)
    @rule(data=st.data(), admit=st.booleans())
    def settle_match(self, data, admit) -> None:
        match = self.pick(self.matches, data)
        if not (admit and self.add(match, 4)):
            match.release()
        self.matches.remove(match)

    @precondition(lambda self: self.tables)
    @rule(data=st.data(), num_tokens=st.integers(1, 2 * BLOCK))
    def prefill(self, data, num_tokens) -> None:
        self.step(self.pick(self.tables, data), num_tokens)

    @precondition(lambda self: self.tables)
    @rule(data=st.data(), token=st.sampled_from([1, 1, 2, 3]), count=st.integers(1, BLOCK))
    def decode(self, data, token, count) -> None:
        table = self.pick(self.tables, data)
        for _ in range(count):
            start = table.num_computed_tokens
            if not self.step(table, table.tokens.num_tokens - start, [token]):
                break

    def perform(self, copies, table: BlockTable) -> None:
        self.kv.perform(copies)
        self.computed_by |= {copy.dst: table.owner for copy in copies}

    def write(self, table: BlockTable, start: int, stop: int) -> None:
        self.kv.write(table, start, stop)
        self.computed_by |= {table.block_ids[position // BLOCK]: table.owner for position in range(start, stop)}

    def step(self, table: BlockTable, num_tokens: int, new_token_ids=()) -> bool:
        start = table.num_computed_tokens
        stop = min(start + num_tokens, table.tokens.num_tokens)
        if stop > table.max_tokens:
            with pytest.raises(BlockStateError):
                self.cache.grow(table, stop)
            return False
        before = self.cache.snapshot()
        copies = self.cache.grow(table, stop)
        if copies is None:
            assert self.cache.snapshot() == before
            return False
        self.perform(copies, table)
        self.write(table, start, stop)
        self.cache.commit(table, stop, new_token_ids)
        return True

    @precondition(lambda self: 0 < len(self.tables) < 4)
    @rule(data=st.data())
    def fork(self, data) -> None:
        fork = self.cache.fork(self.pick(self.tables, data))
        if fork is not None:
            self.perform(fork.copies, fork.table)
            self.kv.check(fork.table, fork.table.num_computed_tokens)
            self.tables.append(fork.table)

    @precondition(lambda self: 0 < len(self.tables) < 4)
    @rule(data=st.data(), num_tokens=st.integers(1, BLOCK))
    def fork_between_grow_and_commit(self, data, num_tokens) -> None:
        """What was granted before the fork must be asked for again."""
        table = self.pick(self.tables, data)
        start = table.num_computed_tokens
        stop = min(start + num_tokens, table.tokens.num_tokens, table.max_tokens)
        copies = self.cache.grow(table, stop) if stop > start else None
        if copies is None:
            return
        self.perform(copies, table)
        fork = self.cache.fork(table)
        if fork is None:
            return
        self.perform(fork.copies, fork.table)
        self.tables.append(fork.table)
        block = table.block_ids[start // BLOCK]
        if self.cache._pool.ref_count[block] > 1:
            with pytest.raises(BlockStateError):
                self.cache.commit(table, stop)
        else:
            self.write(table, start, stop)
            self.cache.commit(table, stop)

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def finish_abort_or_preempt(self, data) -> None:
        table = self.pick(self.tables, data)
        self.tables.remove(table)
        self.cache.free(table)
        computed = table.num_computed_tokens
        text = np.frombuffer(bytes(table.tokens._data), dtype=np.int32)[: computed + 1]
        if self.is_good_hash and computed and len(text) > computed and table not in self.tables:
            with self.cache.match(Prompt(text, b"", table.tokens.scopes, 0)) as match:
                is_whole = match.num_cached_tokens >= computed // BLOCK * BLOCK
                assert is_whole or match.num_pending_tokens or self.has_unfinished_twin(table)

    def has_unfinished_twin(self, table: BlockTable) -> bool:
        """A block that a fork shares and that is not cached yet is cached when the fork ends."""
        return bool(set(table.block_ids) & {block for other in self.tables for block in other.block_ids})

    @rule(prompt=prompts)
    def pin(self, prompt) -> None:
        result = self.cache.pin(self.forged(prompt))
        assert (result.pin is None) == (result.refusal is not None)
        if result.pin:
            self.pins.append(result.pin)

    @precondition(lambda self: self.pins)
    @rule(data=st.data())
    def unpin(self, data) -> None:
        pin = self.pick(self.pins, data)
        self.pins.remove(pin)
        self.cache.unpin(pin)

    @rule(prompt=prompts, level=st.integers(1, 3), expires_at=st.integers(1, 3))
    def prioritize(self, prompt, level, expires_at) -> None:
        with self.recency_untouched():
            self.priorities.append(self.cache.prioritize(self.forged(prompt), level=level, expires_at=expires_at))

    @contextmanager
    def recency_untouched(self):
        before = list(self.cache._pool.queue)
        yield
        after = list(self.cache._pool.queue)
        assert after == before if self.cache.config.policy == "lru" else sorted(after) == sorted(before)

    @rule(now=st.integers(0, 3))
    def expire(self, now) -> None:
        with self.recency_untouched():
            self.cache.expire(now)

    @precondition(lambda self: self.priorities)
    @rule()
    def end_priority(self) -> None:
        with self.recency_untouched():
            self.cache.end_priority(self.priorities.pop())

    @rule(ratio=st.sampled_from([0.0, 0.25, 0.5, 1.0]))
    def change_cap(self, ratio) -> None:
        self.cache.set_max_shared_ratio(ratio)
        self.cap = int(ratio * self.cache.config.num_blocks + 1e-9)

    @rule(prompt=prompts)
    def crash(self, prompt) -> None:
        """Admission fails after it has taken and indexed its blocks."""
        insert = self.cache._index.insert

        def fail_after(*args):
            insert(*args)
            raise MemoryError

        with self.find(prompt) as match, pytest.MonkeyPatch.context() as patch:
            patch.setattr(self.cache._index, "insert", fail_after)
            with suppress(MemoryError):  # not raised when there is nothing to index
                self.add(match, 0)

    @rule(prompt=prompts)
    def explain(self, prompt) -> None:
        before = self.cache.snapshot()
        result = self.cache.explain(self.forged(prompt))
        assert self.cache.snapshot() == before
        assert result.num_cached_tokens <= result.num_common_tokens <= result.num_prompt_tokens
        assert result.owner in {0, *self.cache._index.owners}

    @invariant()
    def counts_agree_with_the_model(self) -> None:
        if not hasattr(self, "cache"):
            return
        self.cache.check_integrity()
        self.kv.check_index()
        spaces = [self.cache._index.namespaces[block] for block in self.cache._index.by_key.values()]
        assert self.cache.blocks_by_namespace() == {space: spaces.count(space) for space in spaces}
        for block in self.cache._index.by_key.values():
            if self.cache._pool.ready[block]:
                assert self.cache._index.owners[block] == self.computed_by[block]
        holders = [set(table.block_ids) for table in self.tables]
        assert all(len(set(table.block_ids)) == len(table.block_ids) for table in self.tables)
        active = set().union(*holders)
        pinned = {block for pin in self.pins for block in pin.blocks}
        shared = pinned | {block for block in active if sum(block in held for held in holders) >= 2}
        snapshot = self.cache.snapshot()
        assert snapshot.active_blocks == len(active)
        assert (snapshot.active_private_blocks, snapshot.active_shared_blocks) == (
            len(active - shared),
            len(active & shared),
        )
        assert snapshot.free_blocks + snapshot.cached_blocks + snapshot.active_blocks == snapshot.total_blocks
        assert (snapshot.shared_blocks, snapshot.pinned_blocks) == (len(shared), len(pinned))
        assert len(pinned) <= self.max_pinned
        self.ceiling = max(self.cap, min(self.ceiling, len(shared)))
        assert len(shared) <= self.ceiling, "sharing grew beyond the cap"
        for table in self.tables:
            self.kv.check(table, table.num_computed_tokens)

    def teardown(self) -> None:
        if not hasattr(self, "cache"):
            return
        for match in self.matches:
            match.release()
        for table in self.tables[1:]:
            self.cache.free(table)
        for table in self.tables[:1]:
            if table in self.can_end:
                assert self.cache.grow(table, table.max_tokens) is not None, "the oldest is stopped by a pin"
            self.cache.free(table)
        for pin in self.pins:
            self.cache.unpin(pin)
        self.cache.check_integrity()
        assert self.cache.snapshot().active_blocks == 0
        tokens = np.full(self.cache.max_request_tokens(), 77, dtype=np.int32)
        with self.cache.match(Prompt(tokens, b"", SCOPES[0], 0)) as match:
            assert self.cache.admit(match, max_new_tokens=0) is not None, "an idle pool is not whole"


def run(max_examples: int, step_count: int) -> int:
    """Live many lives; returns the steps taken in all of them."""
    num_steps = count()

    class CountingMachine(CacheMachine):
        @invariant()
        def count_a_step(self) -> None:
            next(num_steps)

    run_state_machine_as_test(
        CountingMachine,
        settings=settings(
            max_examples=max_examples,
            stateful_step_count=step_count,
            deadline=None,
            derandomize=False,
            suppress_health_check=list(HealthCheck),
        ),
    )
    return next(num_steps)


def test_state_machine():
    run(max_examples=200, step_count=50)


@pytest.mark.slow
def test_state_machine_20000_steps():
    assert run(max_examples=600, step_count=50) >= 20_000
