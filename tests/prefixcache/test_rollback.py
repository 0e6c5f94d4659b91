"""Whatever fails half-way leaves a cache that is whole, and the same call works afterwards."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from itertools import count

import pytest

from prefixcache import BlockTable, PrefixCache
from prefixcache.finder import Finder
from prefixcache.table_index import TableIndex
from tests.prefixcache.factories import BLOCK, admit, compute, make_cache, make_prompt, serve

TEXT = [1, 2, 3, 4, 5, 6, 7, 8]


class Fuse:
    """Raises at one call, then never again."""

    def __init__(self, num_calls: int) -> None:
        self.num_calls = num_calls
        self.is_blown = False

    def burn(self) -> None:
        self.num_calls -= 1
        if self.num_calls < 0 and not self.is_blown:
            self.is_blown = True
            raise MemoryError


class Fused:
    """Stands before an object; each call of one of its methods may fail."""

    def __init__(self, target: object, fuse: Fuse) -> None:
        self._target = target
        self._fuse = fuse

    def __getattr__(self, name: str) -> object:
        value = getattr(self._target, name)
        if not callable(value):
            return value

        def call(*args, **kwargs):
            self._fuse.burn()
            return value(*args, **kwargs)

        return call


class FusedDict(dict):
    """Each new entry may fail, as when a dict has to grow."""

    def __init__(self, fuse: Fuse) -> None:
        super().__init__()
        self._fuse = fuse

    def __setitem__(self, key: object, value: object) -> None:
        self._fuse.burn()
        super().__setitem__(key, value)


def busy_cache(max_shared_ratio: float) -> tuple[PrefixCache, BlockTable]:
    """Free, cached and shared blocks, and a running table whose open block a fork shares."""
    cache = make_cache(12, min_partial_tokens=3, max_shared_ratio=max_shared_ratio, max_pinned_ratio=0.0)
    serve(cache, make_prompt(3, 4, [9]))
    serve(cache, make_prompt(3, TEXT, [9]))
    serve(cache, make_prompt(5, 6, 7, [9]))
    table = compute(cache, admit(cache, make_prompt(1, [1, 2, 3]), max_new_tokens=2 * BLOCK).table)
    assert cache.fork(table) is not None
    return cache, table


def fuse_everything(cache: PrefixCache, fuse: Fuse) -> Callable[[], None]:
    """Put fuses before the parts of a cache; returns what takes them away again."""
    whole = dict(vars(cache))
    for name in ("_pool", "_index", "_ghosts"):
        setattr(cache, name, Fused(whole[name], fuse))
    cache._finder = Finder(cache.config, cache._index, cache._pool.ready, cache._finder._hasher)
    cache._table_index = TableIndex(cache._pool, cache._index)
    cache._explainer = Fused(whole["_explainer"], fuse)
    return lambda: vars(cache).update({name: value for name, value in whole.items() if name != "_counters"})


def do_match(cache, table):
    return cache.match(make_prompt(3, 4, [7])).release() is None


def do_admit(cache, table):
    with cache.match(make_prompt(3, [1, 2, 3, 4, 0, 0, 0, 0], 8, 9, 10, [9])) as match:
        return cache.admit(match, max_new_tokens=0)


def do_grow(cache, table):
    return cache.grow(table, 3 * BLOCK)


def do_fork(cache, table):
    return cache.fork(table)


def do_pin(cache, table):
    return cache.pin(make_prompt(3, 4))


@pytest.mark.parametrize("max_shared_ratio", [0.0, 1.0])
@pytest.mark.parametrize("action", [do_match, do_admit, do_grow, do_fork, do_pin])
def test_failure_at_any_call_leaves_all_counts_right(action, max_shared_ratio):
    for num_calls in count():
        cache, table = busy_cache(max_shared_ratio)
        fuse = Fuse(num_calls)
        before = cache.snapshot()
        take_away = fuse_everything(cache, fuse)
        held = list(table.block_ids)
        with suppress(MemoryError):
            assert action(cache, table) is not None
        take_away()
        if not fuse.is_blown:
            assert num_calls > 0
            return
        for match in list(cache._matches):
            match.release()  # `release` itself failed
        cache.check_integrity()
        after = cache.snapshot()
        assert table.block_ids == held
        assert (after.active_blocks, after.shared_blocks) == (before.active_blocks, before.shared_blocks)
        assert after.free_blocks + after.cached_blocks == before.free_blocks + before.cached_blocks
        assert after.counters["copies"] == before.counters["copies"]
        assert action(cache, table) is not None
        cache.check_integrity()


@pytest.mark.parametrize("with_sibling", [False, True])
@pytest.mark.parametrize("name", ["by_key", "_openings"])
def test_insertion_that_fails_at_any_block_leaves_no_trace(name, with_sibling):
    for num_calls in count():
        cache = make_cache(12)
        fuse = Fuse(num_calls + 100)
        setattr(cache._index, name, FusedDict(fuse))
        if with_sibling:
            serve(cache, make_prompt(1, 2, [9]))
        before = cache.snapshot()
        fuse.num_calls = num_calls
        with cache.match(make_prompt(3, 4, 5, [9])) as match:
            try:
                assert cache.admit(match, max_new_tokens=0) is not None
            except MemoryError:
                cache.check_integrity()
                assert cache.snapshot() == before
                assert cache.admit(match, max_new_tokens=0) is not None
        cache.check_integrity()
        if not fuse.is_blown:
            return


def test_commit_that_cannot_index_a_generated_block_works_when_asked_again():
    cache = make_cache(12)
    fuse = Fuse(100)
    cache._index.by_key = FusedDict(fuse)
    table = compute(cache, admit(cache, make_prompt(1, [1, 2, 3]), max_new_tokens=BLOCK).table)
    assert cache.grow(table, 2 * BLOCK) == []
    fuse.num_calls = 0
    with pytest.raises(MemoryError):
        cache.commit(table, 2 * BLOCK, [4, 5, 6, 7, 8])
    cache.check_integrity()
    cache.commit(table, 2 * BLOCK)
    cache.check_integrity()
    with cache.match(make_prompt(1, TEXT, [9])) as match:
        assert match.num_cached_tokens == 2 * BLOCK
