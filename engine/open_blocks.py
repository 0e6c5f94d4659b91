"""Which blocks of a `per_channel` cache are open, and where their unquantized keys lie.

A block is open from the step that begins it to the step that fills it: then its keys are quantized, once, and never
again. Only blocks that are full are shared or matched, so an open one belongs to one request, but for a fork: it is known
by its block id, so that a fork finds it and a copy takes it along.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from engine.batch import ScheduledRequest, SchedulerOutput
from kernels.plan import IntArray
from prefixcache.interface import CopyOp


@dataclass(frozen=True, slots=True, eq=False)
class OpenStep:
    """What one step does to the open blocks."""

    copies: list[tuple[int, int]]
    """(src, dst), to perform in order before the forward pass."""
    slots: IntArray
    """[num_requests, max_blocks], -1 where a block is quantized; see `PagedBatch.open_slots`."""


class OpenBlocks:
    """Hands out slots; `KVLayout.num_open_blocks` says how many there must be."""

    def __init__(self, num_slots: int, block_size: int) -> None:
        self._block_size = block_size
        self._free = list(range(num_slots))
        self._slots: dict[int, int] = {}  # block -> where it is open
        self._blocks: dict[str, int] = {}  # request -> the block that it has begun and not filled

    def begin_step(self, output: SchedulerOutput) -> OpenStep:
        """Follow the copies, forget who ended, and open all that the step writes to.

        Raises: RuntimeError: a request goes on in a block whose keys are quantized or lost.
        """
        copies = self._copy(output.copies)  # first: the source may be of a request that ended since
        for request_id in output.ended:
            self._blocks.pop(request_id, None)
        written = [self._written(request) for request in output.requests]
        for request, indices in zip(output.requests, written, strict=True):
            block = request.block_ids[indices[0]]
            if request.num_computed_tokens % self._block_size and block not in self._slots:
                raise RuntimeError(f"block {block} of request {request.request_id!r} is partly filled and not open")
            self._blocks[request.request_id] = block
        self._release()
        slots = np.full((len(written), max((indices[-1] + 1 for indices in written), default=0)), -1, dtype=np.int64)
        for row, (request, indices) in enumerate(zip(output.requests, written, strict=True)):
            slots[row, indices] = [self._open(request.block_ids[index]) for index in indices]
            self._blocks[request.request_id] = request.block_ids[indices[-1]]
            if (request.num_computed_tokens + request.num_new_tokens) % self._block_size == 0:
                del self._blocks[request.request_id]
        self._release()  # what this step fills is read from its slot to the end of the step, and not after
        return OpenStep(copies, slots)

    def _written(self, request: ScheduledRequest) -> range:
        """Indices into the block table."""
        start, stop = request.num_computed_tokens, request.num_computed_tokens + request.num_new_tokens
        return range(start // self._block_size, (stop - 1) // self._block_size + 1)

    def _copy(self, copies: Sequence[CopyOp]) -> list[tuple[int, int]]:
        partly = (op for op in copies if op.num_tokens < self._block_size and op.src in self._slots)
        return [(self._slots[op.src], self._open(op.dst)) for op in partly]

    def _open(self, block: int) -> int:
        if block not in self._slots:
            self._slots[block] = self._free.pop()
        return self._slots[block]

    def _release(self) -> None:
        """Free the slots of all blocks that no request has begun and not filled."""
        held = set(self._blocks.values())
        for block in self._slots.keys() - held:
            self._free.append(self._slots.pop(block))
