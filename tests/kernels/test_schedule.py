"""Work items cover every token that a row sees exactly once, and a row's cuts depend on its own length alone."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.cpu.schedule import SPLIT_TOKENS, build_schedule, deal_out
from kernels.plan import PagedBatch
from tests.kernels.cases import BATCHES, make_batch


def seen_tokens(batch: PagedBatch, block_size: int, **options: bool) -> list[list[tuple[int, int]]]:
    """For each token, the (block, offset) that its parts attend to, in their order."""
    schedule = build_schedule(batch, block_size, **options)
    result = []
    for token in range(len(batch.slot_mapping)):
        places = []
        for row in schedule.parts[schedule.starts[token] : schedule.starts[token + 1]]:
            assert schedule.row_tokens[row] == token
            table, first, end, start, stop = schedule.items[schedule.row_items[row]]
            assert start <= row < stop
            for position in range(first * block_size, min(end, schedule.row_visible[row])):
                places.append((batch.block_tables[table, position // block_size], position % block_size))
        result.append(places)
    return result


def own_tokens(batch: PagedBatch, block_size: int) -> list[list[tuple[int, int]]]:
    result = []
    for request, query_len in enumerate(batch.query_lens):
        for back in range(query_len)[::-1]:
            positions = range(batch.seq_lens[request] - back)
            result.append([(batch.block_tables[request, p // block_size], p % block_size) for p in positions])
    return result


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.tuples(st.integers(0, 1300), st.integers(1, 40)), min_size=1, max_size=6),
    st.sampled_from([8, 16, 32, 64]),
    st.integers(0, 20),
    st.booleans(),
    st.booleans(),
)
def test_each_row_attends_once_to_each_token_it_sees(lengths, block_size, shared_blocks, deterministic, cascade):
    shared_blocks = min(shared_blocks, *(sum(pair) // block_size for pair in lengths))
    batch = make_batch(lengths, block_size, num_blocks=2048, shared_blocks=shared_blocks)
    got = seen_tokens(batch, block_size, deterministic=deterministic, cascade=cascade)
    assert got == own_tokens(batch, block_size)


def test_deterministic_cuts_are_those_of_the_row_alone():
    batch = make_batch([(1100, 1), (1050, 30), (700, 1)], 32, num_blocks=256, shared_blocks=20)
    schedule = build_schedule(batch, 32, deterministic=True, cascade=True)
    for row, item in enumerate(schedule.row_items):
        first = schedule.items[item, 1] * 32
        assert first % SPLIT_TOKENS == 0
        assert schedule.items[item, 2] <= first + SPLIT_TOKENS
        assert schedule.items[item, 2] >= min(schedule.row_visible[row], first + SPLIT_TOKENS)
    assert schedule.items[:, 2].max() == 1101


@pytest.mark.parametrize("num_threads", [1, 2, 5])
def test_work_is_dealt_out_whole_and_evenly(num_threads):
    batch = make_batch(BATCHES["all-together"] + [(900, 1)], 16, num_blocks=256)
    schedule = build_schedule(batch, 16, deterministic=False, cascade=True)
    work = deal_out(schedule, 16, 3, num_threads)
    pairs = sorted(map(tuple, np.concatenate(work).tolist()))
    assert pairs == [(item, head) for item in range(len(schedule.items)) for head in range(3)]
    assert len(work) == num_threads
    _, first, end, start, stop = schedule.items.T
    price = (end - first * 16) * (stop - start + 2)
    sizes = [price[part[:, 0]].sum() for part in work]
    assert max(sizes) - min(sizes) <= price.max()
