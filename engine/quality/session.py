"""A model with one scheme of cache: scores a text in chunks, or continues prompts greedily."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from engine.batch import ScheduledRequest
from engine.inputs import StepInputs, build_inputs
from engine.kv_cache import KVCache
from engine.kv_layout import KVLayout
from engine.messages import SamplingParams
from engine.models.interface import Model
from engine.quality.emulation import EmulatedPlan
from engine.quality.schemes import Emulation
from kernels.plan import StepPlan

_GREEDY = SamplingParams(max_tokens=1, temperature=0.0)


@dataclass(frozen=True, slots=True)
class Session:
    """What it takes to run a model; every run has a fresh cache."""

    model: Model
    """With folded rotations if the layout's format is a rotated one."""
    layout: KVLayout
    dtype: torch.dtype
    device: torch.device
    backend: str = "torch"
    emulation: Emulation | None = None
    chunk: int = 512
    """Tokens of one text in a step."""

    def score(self, token_ids: Sequence[int]) -> Iterator[torch.Tensor]:
        """Feed one text; yield the logits of each chunk, [<= chunk, vocab_size] fp32."""
        run = _Run(self, [token_ids])
        for start in range(0, len(token_ids), self.chunk):
            yield run.step([token_ids[start : start + self.chunk]], all_rows=True)

    def continue_greedily(self, prompts: Sequence[Sequence[int]], num_tokens: int) -> Iterator[torch.Tensor]:
        """Continue all prompts side by side; yield the logits [num_prompts, vocab_size] that each token comes from."""
        run = _Run(self, [list(prompt) + [0] * num_tokens for prompt in prompts])
        logits = torch.cat([self._prefill(run, index, prompt) for index, prompt in enumerate(prompts)])
        yield logits
        for _ in range(num_tokens - 1):
            logits = run.step([[token] for token in logits.argmax(dim=-1).tolist()])
            yield logits

    def _prefill(self, run: _Run, index: int, prompt: Sequence[int]) -> torch.Tensor:
        """[1, vocab_size]: what follows a prompt."""
        starts = range(0, len(prompt), self.chunk)
        return [run.step([prompt[start : start + self.chunk]], only=index) for start in starts][-1]


class _Run:
    """A cache and how far each text has come in it."""

    def __init__(self, session: Session, texts: Sequence[Sequence[int]]) -> None:
        self._session = session
        self._num_computed = [0] * len(texts)
        self._tables: list[list[int]] = []
        num_blocks = 0
        for text in texts:
            needed = -(-len(text) // session.layout.block_size)
            self._tables.append(list(range(num_blocks, num_blocks + needed)))
            num_blocks += needed
        self._cache = KVCache.allocate(
            session.layout,
            num_blocks=max(num_blocks, 2),
            dtype=session.dtype,
            device=session.device,
            num_open=num_blocks if session.layout.open_block_bytes else 0,
        )

    @torch.inference_mode()
    def step(self, tokens: Sequence[Sequence[int]], *, only: int | None = None, all_rows: bool = False) -> torch.Tensor:
        """Logits after the new tokens of each text, or of one; of every row, or of the last of each."""
        session = self._session
        indices = range(len(tokens)) if only is None else [only]
        requests = [self._request(index, new) for index, new in zip(indices, tokens, strict=True)]
        inputs = build_inputs(requests, session.layout.block_size)
        rows = np.arange(len(inputs.input_ids)) if all_rows else inputs.sample_rows
        for index, new in zip(indices, tokens, strict=True):
            self._num_computed[index] += len(new)
        input_ids, positions, sample_rows = (
            torch.from_numpy(array).to(session.device) for array in (inputs.input_ids, inputs.positions, rows)
        )
        return session.model.forward(input_ids, positions, sample_rows, self._cache, self._plans(inputs))

    def _plans(self, inputs: StepInputs) -> Sequence[StepPlan]:
        session, batch = self._session, inputs.paged
        if session.layout.open_block_bytes:  # a run is short: every block keeps an open copy of its own
            batch = dataclasses.replace(batch, open_slots=batch.block_tables)
        plans = self._cache.plan_step(batch, backend=session.backend)
        if session.emulation is None:
            return plans
        return [EmulatedPlan(plan, batch, session.emulation) for plan in plans]

    def _request(self, index: int, new: Sequence[int]) -> ScheduledRequest:
        return ScheduledRequest(
            request_id=str(index),
            token_ids=np.asarray(new, dtype=np.int32),
            num_computed_tokens=self._num_computed[index],
            block_ids=self._tables[index],
            sampling=_GREEDY,
            seed=0,
            sample=True,
        )
