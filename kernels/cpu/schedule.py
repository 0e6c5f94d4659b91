"""Which rows attend to which blocks together: the work items of a step, dealt out to threads. Plain numpy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from kernels.plan import IntArray, PagedBatch

SPLIT_TOKENS = 512
"""A context is cut at multiples of this, whatever else runs, so that a row's bits depend on its own length alone."""
PREFILL_ROWS = 64
"""Rows of a chunk that share an item: enough to unpack a block once for many."""
WORTH_A_THREAD = 8000
"""Work, in tokens times rows and KV heads, that takes as long as another thread needs to begin: about 0.1 ms."""
CASCADE_TOKENS = 128
"""Common tokens from which a shared run is worth its one more part for each row."""


@dataclass(frozen=True, slots=True, eq=False)
class Schedule:
    """Work items over rows; see `kernels.cpu.attend` for the arrays."""

    items: IntArray
    """[num_items, 5]: block table, first block, end token, first row, end of the rows."""
    row_tokens: IntArray
    row_visible: IntArray
    row_items: IntArray
    """[num_rows] each."""
    starts: IntArray
    parts: IntArray
    """Rows of each token, in the order of its context: parts[starts[token] : starts[token + 1]]."""


@dataclass(frozen=True, slots=True)
class _Item:
    table: int
    first_block: int
    end: int
    tokens: IntArray
    visible: IntArray


def build_schedule(batch: PagedBatch, block_size: int, *, deterministic: bool, cascade: bool) -> Schedule:
    """Cut the step's attention into items.

    Args:
        batch: of the step.
        block_size: tokens a block; divides SPLIT_TOKENS.
        deterministic: cut chunks where decode rows are cut, and share nothing.
        cascade: let decode rows with a common run of leading blocks attend to it together.
    """
    items: list[_Item] = []
    decoding = np.flatnonzero(batch.query_lens == 1)
    shared = np.zeros(len(batch.seq_lens), dtype=np.int64)  # leading blocks that others attend to for a request
    if cascade and not deterministic:
        for requests, num_blocks in _common_runs(batch, decoding, block_size):
            shared[requests] = num_blocks
            tokens, visible = batch.query_start_loc[requests], batch.seq_lens[requests]
            items += _split(int(requests[0]), 0, num_blocks * block_size, tokens, visible, block_size)
    for request in decoding:
        tokens, visible = batch.query_start_loc[request : request + 1], batch.seq_lens[request : request + 1]
        items += _split(int(request), int(shared[request]), int(visible[0]), tokens, visible, block_size)
    for request in np.flatnonzero(batch.query_lens > 1):
        start, end = batch.query_start_loc[request : request + 2].tolist()
        for row in range(start, end, PREFILL_ROWS):
            tokens = np.arange(row, min(end, row + PREFILL_ROWS))
            visible = tokens + 1 + batch.seq_lens[request] - end
            if deterministic:
                items += _split(int(request), 0, int(visible[-1]), tokens, visible, block_size)
            else:
                items.append(_Item(int(request), 0, int(visible[-1]), tokens, visible))
    return _lay_out(items, int(batch.query_start_loc[-1]))


def deal_out(schedule: Schedule, block_size: int, num_kv_heads: int, num_threads: int) -> list[IntArray]:
    """Give each thread its (item, KV head) pairs, the longest first to who has least."""
    items = schedule.items
    num_tokens, num_rows = items[:, 2] - items[:, 1] * block_size, items[:, 4] - items[:, 3]
    cost = num_tokens * (num_rows + 2)  # unpacking a block costs about as much as two rows
    if int(cost.sum()) * num_kv_heads < WORTH_A_THREAD:
        num_threads = 1
    loads = [0] * num_threads
    work: list[list[tuple[int, int]]] = [[] for _ in range(num_threads)]
    for item in np.argsort(-cost, kind="stable").tolist():
        for head in range(num_kv_heads):
            thread = loads.index(min(loads))
            loads[thread] += int(cost[item])
            work[thread].append((item, head))
    return [np.array(sorted(pairs), dtype=np.int64).reshape(-1, 2) for pairs in work if pairs]


def _split(
    table: int, first_block: int, end: int, tokens: IntArray, visible: IntArray, block_size: int
) -> Iterator[_Item]:
    """Cut [first_block, end) of a context at multiples of SPLIT_TOKENS."""
    start = first_block * block_size
    while start < end:
        stop = min(end, (start // SPLIT_TOKENS + 1) * SPLIT_TOKENS)
        yield _Item(table, start // block_size, stop, tokens, visible)
        start = stop


def _common_runs(batch: PagedBatch, decoding: IntArray, block_size: int) -> Iterator[tuple[IntArray, int]]:
    """Groups of decoding requests that start with the same blocks, with the length of their common run in blocks."""
    first_blocks = batch.block_tables[decoding, 0]
    for block in np.unique(first_blocks):
        requests = decoding[first_blocks == block]
        if len(requests) < 2:
            continue
        limit = int(batch.seq_lens[requests].min()) // block_size
        tables = batch.block_tables[requests, :limit]
        differs = np.flatnonzero((tables != tables[0]).any(axis=0))
        num_blocks = int(differs[0]) if len(differs) else limit
        if num_blocks * block_size >= CASCADE_TOKENS:
            yield requests, num_blocks


def _lay_out(items: list[_Item], num_tokens: int) -> Schedule:
    lens = np.array([len(item.tokens) for item in items], dtype=np.int64)
    ends = np.cumsum(lens)
    table = np.array(
        [
            (item.table, item.first_block, item.end, end - size, end)
            for item, size, end in zip(items, lens.tolist(), ends.tolist(), strict=True)
        ],
        dtype=np.int64,
    )
    row_tokens = np.concatenate([item.tokens for item in items])
    row_items = np.repeat(np.arange(len(items)), lens)
    # a token's parts by their first block
    order = np.lexsort((table[row_items, 1], row_tokens))
    starts = np.concatenate(([0], np.cumsum(np.bincount(row_tokens, minlength=num_tokens))))
    return Schedule(table, row_tokens, np.concatenate([item.visible for item in items]), row_items, starts, order)
