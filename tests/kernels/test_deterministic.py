"""With `deterministic`, the bits of a row depend on its query, its length and the cache's bytes, and on nothing else."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels import ops
from kernels.layout import LayerKV
from kernels.plan import PagedBatch
from tests.kernels.cases import Shape, make_batch, make_layer

LENGTH = 700  # more than one split
KINDS = {  # format, dtype, shape
    "codes": ("int8/hadamard", torch.bfloat16, Shape(9, 3, 64, 32)),
    "codes-in-two-parts": ("int8/per_token", torch.float32, Shape(9, 3, 64, 32)),
    "groups": ("int8/per_group_32", torch.bfloat16, Shape(9, 3, 64, 32)),
    "heads-not-of-32": ("int8/per_token", torch.bfloat16, Shape(4, 2, 80, 32)),
    "floats": ("auto", torch.bfloat16, Shape(9, 3, 64, 32)),
}
windows = st.lists(
    st.tuples(st.sampled_from((0, 1)), st.integers(0, LENGTH - 1), st.one_of(st.just(1), st.integers(1, 80))),
    min_size=1,
    max_size=5,
)


@cache
def whole(kind: str) -> tuple[LayerKV, np.ndarray, list[torch.Tensor], list[torch.Tensor]]:
    """A cache, the block tables of two sequences that share their first blocks, their queries and all rows' outputs."""
    format_name, dtype, shape = KINDS[kind]
    torch.manual_seed(8)
    layer = make_layer(format_name, shape, dtype)
    tables = make_batch([(0, LENGTH), (0, LENGTH)], 32, shared_blocks=9).block_tables
    queries = [torch.randn(LENGTH, shape.num_heads, shape.head_dim).to(dtype) for _ in range(2)]
    outputs = [attend(layer, tables, queries, [(sequence, 0, LENGTH)]) for sequence in range(2)]
    return layer, tables, queries, outputs


def attend(
    layer: LayerKV, tables: np.ndarray, queries: list[torch.Tensor], parts: list[tuple[int, int, int]], **options: bool
) -> torch.Tensor:
    """Attention of rows [start, end) of sequences, as one batch."""
    sequences, starts, ends = np.array(parts).T
    batch = PagedBatch(
        np.concatenate(
            [tables[s, p // 32] * 32 + p % 32 for s, p in zip(sequences, map(np.arange, starts, ends), strict=True)]
        ),
        np.concatenate(([0], np.cumsum(ends - starts))),
        ends,
        tables[sequences],
    )
    plan = ops.plan_step(batch, layer, backend="numba", **{"deterministic": True, **options})
    query = torch.cat([queries[sequence][start:end] for sequence, start, end in parts])
    return ops.paged_attention(query, layer, plan, scale=0.125)


@pytest.mark.parametrize("kind", KINDS)
@settings(deadline=None, max_examples=40)
@given(drawn=windows)
def test_a_row_has_the_same_bits_in_any_chunk_batch_and_place(kind, drawn):
    layer, tables, queries, outputs = whole(kind)
    parts = [(sequence, start, min(LENGTH, start + size)) for sequence, start, size in drawn]
    got = attend(layer, tables, queries, parts)
    assert torch.equal(got, torch.cat([outputs[sequence][start:end] for sequence, start, end in parts]))


@pytest.mark.parametrize("kind", KINDS)
def test_every_decode_row_has_the_bits_of_its_prefill_row(kind):
    layer, tables, queries, outputs = whole(kind)
    decode = attend(layer, tables, queries, [(row % 2, row, row + 1) for row in range(LENGTH)])
    assert torch.equal(decode, torch.stack([outputs[row % 2][row] for row in range(LENGTH)]))


def test_without_it_the_bits_depend_on_the_batch():
    """The other arm: what the tests above compare does differ where nobody promised otherwise."""
    layer, tables, queries, outputs = whole("floats")
    decode = attend(layer, tables, queries, [(0, row, row + 1) for row in range(600, LENGTH)], deterministic=False)
    assert not torch.equal(decode, outputs[0][600:])
