"""The smallest scheduler that can serve: one token a step, first come first served, the youngest is preempted.

Its "model" gives every token as a function of the text before it, so a finished answer can be checked.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np

from prefixcache import BlockTable, PrefixCache, Prompt, Scope
from tests.prefixcache.factories import TENANT_A
from tests.prefixcache.fake_kv import FakeKV

SCOPES = (Scope(TENANT_A, 0),)


@dataclass(eq=False)
class Request:
    tokens: list[int]
    max_tokens: int
    """Prompt and answer."""
    table: BlockTable | None = None
    has_begun: bool = False


@dataclass
class Outcome:
    """What one run took."""

    num_steps: int = 0
    num_admissions: int = 0
    max_running: int = 0
    preemptions: int = 0
    stalls: int = 0
    """Steps, summed over requests, in which a request that had begun to answer had no blocks to go on."""
    answers: list[list[int]] = field(default_factory=list)


def next_token(tokens: list[int]) -> int:
    return (sum(tokens[-8:]) * 31 + len(tokens)) % 1000


def answer(tokens: list[int], num_new_tokens: int) -> list[int]:
    """What a request must come to."""
    tokens = list(tokens)
    for _ in range(num_new_tokens):
        tokens.append(next_token(tokens))
    return tokens


class FakeScheduler:
    """Serves requests to their end."""

    def __init__(self, cache: PrefixCache, requests: list[Request], *, check_kv: bool = True) -> None:
        self.cache = cache
        self.kv = FakeKV(cache) if check_kv else None
        self.requests = requests
        self.waiting = deque(requests)
        self.running: list[Request] = []
        self.outcome = Outcome()

    def run(self, max_steps: int) -> Outcome:
        while self.waiting or self.running:
            assert self.outcome.num_steps < max_steps, "the requests do not come to an end"
            self.step()
        self.outcome.answers = [request.tokens for request in self.requests]
        return self.outcome

    def step(self) -> None:
        outcome = self.outcome
        outcome.num_steps += 1
        preemptions = outcome.preemptions
        scheduled = [request for request in list(self.running) if request in self.running and self.make_room(request)]
        scheduled = [request for request in scheduled if request.table is not None]
        if outcome.preemptions == preemptions:
            scheduled += self.admit()
        outcome.stalls += sum(request.has_begun for request in self.waiting)
        outcome.max_running = max(outcome.max_running, len(self.running))
        for request in scheduled:
            self.compute(request)

    def make_room(self, request: Request) -> bool:
        """Slots for all tokens known, at the cost of younger requests."""
        while (copies := self.cache.grow(request.table, len(request.tokens))) is None:
            youngest = self.running.pop()
            self.outcome.preemptions += 1
            self.cache.free(youngest.table)
            youngest.table = None
            self.waiting.appendleft(youngest)
            if youngest is request:
                return False
        self.perform(copies)
        return True

    def admit(self) -> list[Request]:
        admitted = []
        while self.waiting:
            request = self.waiting[0]
            prompt = Prompt(np.array(request.tokens, dtype=np.int32), b"", SCOPES, 0)
            with self.cache.match(prompt) as match:
                if match.num_pending_tokens:
                    break
                allocation = self.cache.admit(match, max_new_tokens=request.max_tokens - len(request.tokens))
            if allocation is None:
                break
            self.perform(allocation.copies)
            request.table = allocation.table
            request.has_begun = True
            self.running.append(self.waiting.popleft())
            self.outcome.num_admissions += 1
            admitted.append(request)
        return admitted

    def compute(self, request: Request) -> None:
        table = request.table
        assert table is not None
        if self.kv is not None:
            self.kv.write(table, table.num_computed_tokens, len(request.tokens))
        num_computed = len(request.tokens)
        request.tokens.append(next_token(request.tokens))
        self.cache.commit(table, num_computed, request.tokens[-1:])
        if len(request.tokens) == request.max_tokens:
            self.cache.free(table)
            request.table = None
            self.running.remove(request)

    def perform(self, copies) -> None:
        if self.kv is not None:
            self.kv.perform(copies)
