"""Every state that three requests can reach on four blocks, by breadth-first search.

A state is rebuilt by replaying the shortest list of events that leads to it. Block ids are renamed in order of
appearance, so that states that differ by names only are one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

import pytest

from prefixcache import BlockTable, Pin
from tests.prefixcache.factories import BLOCK, make_cache, make_prompt
from tests.prefixcache.fake_kv import FakeKV

Event = tuple[str, int]
FIRST = [1, 2, 3, 4, 5, 6, 7, 8]
PROMPTS = [
    make_prompt(FIRST, [9]),
    make_prompt(FIRST, 2, [9]),
    make_prompt([1, 2, 3, 4, 0, 0, 0, 0], [9]),  # begins like the others: copies a partial block
]
MAX_NEW_TOKENS = [BLOCK, 2, BLOCK]
WAITING, RUNNING, DONE = "waiting", "running", "done"


class World:
    """A cache with three requests, and what can happen to them."""

    def __init__(self, max_shared_ratio: float, *, with_pins: bool, events: tuple[Event, ...] = ()) -> None:
        self.with_pins = with_pins
        self.cache = make_cache(4, max_shared_ratio=max_shared_ratio, max_pinned_ratio=0.25, min_partial_tokens=3)
        self.kv = FakeKV(self.cache)
        self.status = [WAITING] * 3
        self.tables: list[BlockTable | None] = [None] * 3
        self.current_pin: Pin | None = None
        for event in events:
            self.apply(event)

    def events(self) -> Iterator[Event]:
        for number, status in enumerate(self.status):
            if status == WAITING:
                yield "admit", number
            elif status == RUNNING:
                yield "step", number
                yield "preempt", number
                yield "abort", number
        # The third request is a fork of the first as soon as there is one to fork and it has not run yet.
        if self.status[0] == RUNNING and self.status[2] == WAITING:
            yield "fork", 2
        if self.with_pins:
            yield ("pin", 0) if self.current_pin is None else ("unpin", 0)

    def apply(self, event: Event) -> None:
        name, number = event
        getattr(self, name)(number)

    def admit(self, number: int) -> None:
        with self.cache.match(PROMPTS[number]) as match:
            if match.num_pending_tokens:
                return  # single-flight: wait
            allocation = self.cache.admit(match, max_new_tokens=MAX_NEW_TOKENS[number])
        if allocation is not None:
            self.kv.perform(allocation.copies)
            self.start(number, allocation.table)

    def start(self, number: int, table: BlockTable) -> None:
        self.tables[number] = table
        self.status[number] = RUNNING

    def fork(self, number: int) -> None:
        fork = self.cache.fork(self.table(0))
        if fork is not None:
            self.kv.perform(fork.copies)
            self.start(number, fork.table)

    def table(self, number: int) -> BlockTable:
        table = self.tables[number]
        assert table is not None
        return table

    def step(self, number: int) -> None:
        """Compute up to the next block border, generate the token that is missing there, and end at the last one."""
        table = self.table(number)
        start, known = table.num_computed_tokens, table.tokens.num_tokens
        stop = min(known, (start // BLOCK + 1) * BLOCK)
        copies = self.cache.grow(table, stop)
        if copies is None:
            return
        self.kv.perform(copies)
        self.kv.write(table, start, stop)
        room = table.max_tokens - known
        new = [50 + number] * min(room, BLOCK - known % BLOCK) if stop == known else []
        self.cache.commit(table, stop, new)
        if stop == known and not new:
            self.end(number, DONE)

    def preempt(self, number: int) -> None:
        self.end(number, WAITING)

    def abort(self, number: int) -> None:
        self.end(number, DONE)

    def end(self, number: int, status: str) -> None:
        self.cache.free(self.table(number))
        self.tables[number] = None
        self.status[number] = status

    def pin(self, number: int) -> None:
        self.current_pin = self.cache.pin(PROMPTS[0]).pin

    def unpin(self, number: int) -> None:
        assert self.current_pin is not None
        self.cache.unpin(self.current_pin)
        self.current_pin = None

    def check(self) -> None:
        self.cache.check_integrity()
        self.kv.check_index()
        for table in self.tables:
            if table is not None:
                self.kv.check(table, table.num_computed_tokens)
        assert self.cache.snapshot().shared_blocks <= self.cache.config.max_shared_ratio * 4

    def state(self) -> object:
        """All that the future depends on."""
        pool, index = self.cache._pool, self.cache._index
        names: dict[int, int] = {}
        name: Callable[[int], int] = lambda block: -1 if block < 0 else names.setdefault(block, len(names))  # noqa: E731
        tables = tuple(
            table
            and (tuple(map(name, table.block_ids)), bytes(table.tokens._data), table.num_computed_tokens, table.num_tokens,
                 table.num_indexed, table.detached)
            for table in self.tables
        )  # fmt: skip
        queue = tuple(map(name, pool.queue))
        pinned = tuple(sorted(map(name, pool.pins)))
        used = sorted(names, key=names.__getitem__)
        contents = tuple(
            (index.keys[b], name(index.parents[b]) if index.keys[b] else None, pool.ready[b]) for b in used
        )
        listed = list(index.every_child())
        children = tuple(
            tuple(name(child) for child in listed if index.parents[child] == b)
            for b in (-1, *used)
            if b < 0 or index.keys[b]
        )
        return tuple(self.status), tables, queue, pinned, contents, children


def explore(
    max_shared_ratio: float, *, with_pins: bool
) -> tuple[dict[object, tuple[Event, ...]], dict[object, set[object]]]:
    """All reachable states with a shortest path to each, and who leads to whom."""
    world = World(max_shared_ratio, with_pins=with_pins)
    paths: dict[object, tuple[Event, ...]] = {world.state(): ()}
    sources: dict[object, set[object]] = {}
    todo = deque([(world.state(), tuple(world.events()))])
    while todo:
        state, events = todo.popleft()
        for event in events:
            path = (*paths[state], event)
            world = World(max_shared_ratio, with_pins=with_pins, events=path)
            world.check()
            after = world.state()
            if event[0] != "abort":  # giving up is no way out
                sources.setdefault(after, set()).add(state)
            if after not in paths:
                paths[after] = path
                todo.append((after, tuple(world.events())))
    return paths, sources


def check_everything(max_shared_ratio: float, *, with_pins: bool) -> int:
    """Explore, prove that every state can still reach the end of all three requests, count the states."""
    paths, sources = explore(max_shared_ratio, with_pins=with_pins)
    todo = [state for state in paths if state[0] == (DONE,) * 3]
    good = set(todo)
    while todo:
        for source in sources.get(todo.pop(), ()):
            if source not in good:
                good.add(source)
                todo.append(source)
    dead_ends = [paths[state] for state in paths if state not in good]
    assert not dead_ends, min(dead_ends, key=len)
    return len(paths)


def test_every_state_is_sound_and_leads_to_the_end():
    assert check_everything(0.25, with_pins=False) > 1000


@pytest.mark.slow
@pytest.mark.parametrize("max_shared_ratio", [0.25, 0.5, 1.0])
def test_every_state_with_pins_is_sound_and_leads_to_the_end(max_shared_ratio):
    assert check_everything(max_shared_ratio, with_pins=True) > 5000
