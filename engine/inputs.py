"""From the scheduler's decision to arrays: a pure function, numpy only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from engine.batch import ScheduledRequest
from kernels.plan import IntArray, PagedBatch


@dataclass(frozen=True, slots=True, eq=False)
class StepInputs:
    """The rows of one step, request after request."""

    input_ids: IntArray
    """[num_tokens]."""
    positions: IntArray
    """[num_tokens]."""
    sample_rows: IntArray
    """[num_sampled]: last row of each request with `sample`, in the order of the requests."""
    scored_rows: IntArray
    """[num_scored]: rows whose logits tell how likely the prompt's next token was, likewise."""
    paged: PagedBatch
    """Where the rows write and what they read."""


def build_inputs(requests: Sequence[ScheduledRequest], block_size: int) -> StepInputs:
    """Lay the requests' new tokens side by side.

    Args:
        requests: at least one, each with at least one new token.
        block_size: tokens a block.
    """
    num_new = np.array([request.num_new_tokens for request in requests], dtype=np.int64)
    num_computed = np.array([request.num_computed_tokens for request in requests], dtype=np.int64)
    query_start_loc = np.concatenate(([0], np.cumsum(num_new)))
    seq_lens = num_computed + num_new
    # blocks past a request's end may be allocated already; they are not read
    block_tables = np.zeros((len(requests), int(-(-seq_lens.max() // block_size))), dtype=np.int64)
    for row, request in enumerate(requests):
        ids = request.block_ids[: block_tables.shape[1]]
        block_tables[row, : len(ids)] = ids

    owner = np.repeat(np.arange(len(requests)), num_new)
    positions = np.arange(query_start_loc[-1]) - query_start_loc[owner] + num_computed[owner]
    block_index, offset = np.divmod(positions, block_size)
    slot_mapping = block_tables[owner, block_index] * block_size + offset
    starts = zip(query_start_loc[:-1], requests, strict=True)
    scored = [start + np.arange(len(request.targets)) for start, request in starts if request.targets is not None]
    sampled = np.array([request.sample for request in requests], dtype=bool)
    return StepInputs(
        input_ids=np.concatenate([request.token_ids for request in requests]).astype(np.int64),
        positions=positions,
        sample_rows=query_start_loc[1:][sampled] - 1,
        scored_rows=np.concatenate(scored) if scored else np.empty(0, dtype=np.int64),
        paged=PagedBatch(slot_mapping, query_start_loc, seq_lens, block_tables),
    )
