"""A model whose inside we do not know must answer over the paged cache as it does by itself, before it serves anyone."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from engine.batch import ScheduledRequest
from engine.errors import ModelLoadError
from engine.inputs import build_inputs
from engine.kv_cache import KVCache
from engine.kv_layout import KVLayout
from engine.messages import SamplingParams
from engine.models.interface import Model

_BLOCK_SIZE = 8
_BORDERS = (0, 9, 15, 16)  # a prompt in two chunks and a decode step, across a block's border
_OTHER_BORDERS = (0, 1, 2, 16)  # a second sequence beside it, so that a model that mixes its rows is found out
_STRIDE = 40_503  # spreads token ids over the vocabulary, the same every time
_TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.1, torch.float16: 0.02}
"""Of the norm of the logits. The small types round at every layer; a wrong mask or position is off by about 1."""


@torch.inference_mode()
def check_against(
    model: Model, own_logits: Callable[[torch.Tensor], torch.Tensor], *, dtype: torch.dtype, device: torch.device
) -> None:
    """Raise ModelLoadError unless the model gives the same logits over a paged cache in chunks as by itself.

    Args:
        model: to be checked.
        own_logits: token ids [num_tokens] to logits [num_tokens, vocab_size], without our cache.
        dtype: of its activations.
        device: of its weights.
    """
    config = model.config
    layout = KVLayout(config.num_layers, config.num_kv_heads, config.head_dim, block_size=_BLOCK_SIZE)
    cache = KVCache.allocate(layout, num_blocks=4, dtype=dtype, device=device)
    ids = np.arange(1, 2 * _BORDERS[-1] + 1) * _STRIDE % config.vocab_size
    prompts = ids[: _BORDERS[-1]], ids[_BORDERS[-1] :]
    expected = [own_logits(torch.from_numpy(prompt).to(device)).float() for prompt in prompts]
    for step in range(len(_BORDERS) - 1):
        chunks = [(borders[step], borders[step + 1]) for borders in (_BORDERS, _OTHER_BORDERS)]
        requests = [_request(index, prompts[index], *chunk) for index, chunk in enumerate(chunks)]
        inputs = build_inputs(requests, _BLOCK_SIZE)
        input_ids, positions, sample_rows = (
            torch.from_numpy(array).to(device) for array in (inputs.input_ids, inputs.positions, inputs.sample_rows)
        )
        plans = cache.plan_step(inputs.paged, backend="torch")
        got = model.forward(input_ids, positions, sample_rows, cache, plans)
        wanted = torch.stack([logits[end - 1] for logits, (_, end) in zip(expected, chunks, strict=True)])
        if not (got - wanted).norm() <= _TOLERANCE[dtype] * wanted.norm():
            raise ModelLoadError(
                f"{config.architecture}: its logits over the paged cache are not those it has by itself (off by "
                f"{(got - wanted).norm() / wanted.norm():.3g} of their norm), so it cannot be served"
            )


def _request(index: int, prompt: np.ndarray[tuple[int], np.dtype[np.int64]], start: int, end: int) -> ScheduledRequest:
    return ScheduledRequest(
        request_id=str(index),
        token_ids=prompt[start:end].astype(np.int32),
        num_computed_tokens=start,
        block_ids=[2 * index, 2 * index + 1],
        sampling=SamplingParams(max_tokens=1),
        seed=0,
        sample=True,
    )
