"""The arrays of a step, by hand."""

from __future__ import annotations

import numpy as np

from engine.batch import ScheduledRequest
from engine.inputs import build_inputs
from engine.messages import SamplingParams


def make_request(token_ids, num_computed, block_ids, *, sample=True):
    return ScheduledRequest(
        request_id="r",
        token_ids=np.array(token_ids, dtype=np.int32),
        num_computed_tokens=num_computed,
        block_ids=block_ids,
        sampling=SamplingParams(max_tokens=1),
        seed=0,
        sample=sample,
    )


def test_build_inputs_lays_requests_side_by_side():
    inputs = build_inputs(
        [
            make_request([50], 8, [3, 1]),  # decode, first slot of its second block
            make_request([60, 61, 62], 6, [7, 2, 9], sample=False),  # a chunk over a block's edge, one block ahead
            make_request([70, 71], 0, [5]),
        ],
        block_size=8,
    )
    assert inputs.input_ids.tolist() == [50, 60, 61, 62, 70, 71]
    assert inputs.input_ids.dtype == np.int64
    assert inputs.positions.tolist() == [8, 6, 7, 8, 0, 1]
    assert inputs.sample_rows.tolist() == [0, 5]
    assert inputs.paged.slot_mapping.tolist() == [8, 62, 63, 16, 40, 41]
    assert inputs.paged.query_start_loc.tolist() == [0, 1, 4, 6]
    assert inputs.paged.seq_lens.tolist() == [9, 9, 2]
    assert inputs.paged.block_tables.tolist() == [[3, 1], [7, 2], [5, 0]]


def test_build_inputs_of_one_token_with_nothing_to_sample():
    inputs = build_inputs([make_request([9], 0, [4], sample=False)], block_size=16)
    assert (inputs.sample_rows.tolist(), inputs.paged.slot_mapping.tolist()) == ([], [64])
