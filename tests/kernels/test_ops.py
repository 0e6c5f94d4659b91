"""The torch backend against the readable reference, on odd sizes and a poisoned cache."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from kernels import ops, reference
from kernels.plan import PagedBatch

# fp32: sums of at most 200 products of unit normals in another order; 16 bits: one rounding of outputs below 4
TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 2**-6}
BATCHES = {  # (num_computed, num_new) of each request
    "one-token": [(0, 1)],
    "prompt-of-a-prime": [(0, 31)],
    "chunk-behind-prefix": [(17, 13)],
    "decode-alone": [(40, 1)],
    "decode-mixed-lengths": [(0, 1), (7, 1), (8, 1), (9, 1), (150, 1)],
    "decode-same-length": [(12, 1), (12, 1)],
    "all-together": [(33, 1), (0, 9), (15, 2), (8, 8), (130, 1), (64, 65)],
}


def make_batch(shape: list[tuple[int, int]], block_size: int, num_blocks: int, seed: int = 0) -> PagedBatch:
    """Requests with shuffled blocks; what is past a request's blocks in its table belongs to nobody."""
    free = list(np.random.default_rng(seed).permutation(num_blocks))
    computed, new = np.array(shape, dtype=np.int64).T
    seq_lens = computed + new
    tables = np.full((len(shape), -(-seq_lens.max() // block_size)), free.pop(), dtype=np.int64)
    slots = []
    for row, (start, seq_len) in enumerate(zip(computed, seq_lens, strict=True)):
        for index in range(-(-seq_len // block_size)):
            tables[row, index] = free.pop()
        slots += [tables[row, p // block_size] * block_size + p % block_size for p in range(start, seq_len)]
    return PagedBatch(np.array(slots), np.concatenate(([0], np.cumsum(new))), seq_lens, tables)


def poison_unused(cache: torch.Tensor, batch: PagedBatch) -> None:
    """NaN in every slot that holds no token of a request."""
    num_blocks, _, block_size, _ = cache.shape
    used = torch.zeros(num_blocks, block_size, dtype=torch.bool)
    for table, seq_len in zip(batch.block_tables, batch.seq_lens, strict=True):
        for position in range(seq_len):
            used[table[position // block_size], position % block_size] = True
    cache.masked_fill_(~used[:, None, :, None], torch.nan)


@pytest.mark.parametrize("shape", BATCHES.values(), ids=BATCHES.keys())
@pytest.mark.parametrize(
    ("num_heads", "num_kv_heads", "head_dim", "block_size", "dtype"),
    [(9, 3, 64, 32, torch.float32), (4, 4, 16, 8, torch.float32), (8, 1, 80, 16, torch.bfloat16)],
    ids=["H9-K3-D64-B32", "H4-K4-D16-B8", "H8-K1-D80-B16-bf16"],
)
def test_step_agrees_with_the_reference_and_reads_no_garbage(
    shape, num_heads, num_kv_heads, head_dim, block_size, dtype
):
    torch.manual_seed(1)
    batch = make_batch(shape, block_size, num_blocks=64)
    num_tokens = len(batch.slot_mapping)
    keys, values = (torch.randn(64, num_kv_heads, block_size, head_dim).to(dtype) for _ in range(2))
    query, key, value = (
        torch.randn(num_tokens, heads, head_dim).to(dtype) for heads in (num_heads, num_kv_heads, num_kv_heads)
    )
    for cache in (keys, values):
        poison_unused(cache, batch)
    expected_caches = keys.clone(), values.clone()

    spec = ops.plan_step(batch, keys, backend="reference")
    ops.store_kv(key, value, *expected_caches, spec)
    expected = ops.paged_attention(query, *expected_caches, spec, scale=head_dim**-0.5)
    plan = ops.plan_step(batch, keys)
    ops.store_kv(key, value, keys, values, plan)
    got = ops.paged_attention(query, keys, values, plan, scale=head_dim**-0.5)

    torch.testing.assert_close(keys, expected_caches[0], rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(values, expected_caches[1], rtol=0, atol=0, equal_nan=True)
    assert expected.isfinite().all()
    torch.testing.assert_close(got, expected, rtol=0, atol=TOLERANCE[dtype])


def test_reference_agrees_with_plain_softmax_attention():
    torch.manual_seed(2)
    batch = make_batch([(5, 6)], block_size=8, num_blocks=8)
    caches = torch.zeros(2, 8, 2, 8, 16)
    whole_key, whole_value = torch.randn(2, 11, 2, 16)
    everything = PagedBatch(
        np.array([batch.block_tables[0, p // 8] * 8 + p % 8 for p in range(11)]),
        np.array([0, 11]),
        np.array([11]),
        batch.block_tables,
    )
    ops.store_kv(whole_key, whole_value, *caches, ops.plan_step(everything, caches[0], backend="reference"))
    query = torch.randn(6, 4, 16)
    got = ops.paged_attention(query, *caches, ops.plan_step(batch, caches[0], backend="reference"), scale=0.3)

    scores = torch.einsum("qhd,khd->hqk", query, whole_key.repeat_interleave(2, dim=1)) * 0.3
    scores = scores.masked_fill(torch.ones(6, 11).triu(6).bool(), -torch.inf)
    expected = torch.einsum("hqk,khd->qhd", scores.softmax(-1), whole_value.repeat_interleave(2, dim=1))
    torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("backend", [ops, reference], ids=["torch", "reference"])
def test_copy_blocks_performs_a_chain_in_order_and_leaves_the_tail(backend):
    cache = torch.arange(2 * 4 * 1 * 8 * 1, dtype=torch.float32).reshape(2, 4, 1, 8, 1)
    keys, values = cache.clone(), -cache
    backend.copy_blocks(keys, values, [(0, 1, 5), (1, 2, 8), (3, 3, 8), (3, 0, 0)])
    for layer in range(2):
        head, tail = cache[layer, 0, :, :5], cache[layer, 1, :, 5:]
        for block in (1, 2):
            assert torch.equal(keys[layer, block], torch.cat((head, tail), dim=1))
            assert torch.equal(values[layer, block], -torch.cat((head, tail), dim=1))
        for block in (0, 3):
            assert torch.equal(keys[layer, block], cache[layer, block])


CACHE = torch.zeros(4, 1, 8, 16)
GOOD = {"slot_mapping": [0], "query_start_loc": [0, 1], "seq_lens": [1], "block_tables": [[0]]}


@pytest.mark.parametrize(
    ("change", "names"),
    [
        ({"slot_mapping": [32]}, "slot_mapping"),
        ({"slot_mapping": [-1]}, "slot_mapping"),
        ({"block_tables": [[4]]}, "block_tables"),
        ({"slot_mapping": [0, 1]}, "query_start_loc"),
        ({"query_start_loc": [0, 0], "slot_mapping": []}, "query_start_loc"),
        ({"seq_lens": [0]}, "seq_lens"),
        ({"seq_lens": [9]}, "seq_lens"),
        ({"seq_lens": [1, 1]}, "batch"),
        ({"seq_lens": [], "block_tables": np.zeros((0, 1)), "query_start_loc": [0], "slot_mapping": []}, "batch"),
    ],
)
def test_plan_step_refuses_arrays_that_do_not_fit(change, names):
    arrays = {name: np.asarray(value, dtype=np.int64) for name, value in {**GOOD, **change}.items()}
    with pytest.raises(ValueError, match=names):
        ops.plan_step(PagedBatch(**arrays), CACHE)


def test_ops_refuse_tensors_that_do_not_fit():
    batch = PagedBatch(**{name: np.asarray(value, dtype=np.int64) for name, value in GOOD.items()})
    plan = ops.plan_step(batch, CACHE)
    row = torch.zeros(1, 1, 16)
    with pytest.raises(ValueError, match="backend"):
        ops.plan_step(batch, CACHE, backend="cuda")
    with pytest.raises(ValueError, match="key: got"):
        ops.store_kv(row.half(), row, CACHE, CACHE, plan)
    with pytest.raises(ValueError, match="value: got"):
        ops.store_kv(row, torch.zeros(1, 2, 16), CACHE, CACHE, plan)
    with pytest.raises(ValueError, match="cache: got"):
        ops.store_kv(row, row, CACHE, CACHE[:2], plan)
    with pytest.raises(ValueError, match="query: got"):
        ops.paged_attention(torch.zeros(1, 1, 8), CACHE, CACHE, plan, scale=1.0)
    with pytest.raises(ValueError, match="copy: got"):
        ops.copy_blocks(CACHE[None], CACHE[None], [(0, 4, 1)])
    with pytest.raises(ValueError, match="copy: got"):
        ops.copy_blocks(CACHE[None], CACHE[None], [(0, 1, 9)])
