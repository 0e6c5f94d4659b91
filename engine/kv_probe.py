"""Which layers have keys that int8 would hurt: one fixed run at load, unquantized, and a look at the keys it left.

A key is quantized with one scale a token and head, so its largest channel sets the step of all the others. What counts
is therefore how far the largest channel stands out from a *typical* one. Against the mean square of all channels it
could not stand out by more than sqrt(head_dim), since it is a part of that mean: with a large bias in a few channels,
as Qwen2 has it, 16 would never be reached at head_dim 128. So the reference is the median channel.
"""

from __future__ import annotations

import numpy as np
import torch

from engine.batch import ScheduledRequest
from engine.inputs import build_inputs
from engine.kv_cache import KVCache
from engine.kv_layout import KVLayout
from engine.messages import SamplingParams
from engine.models.interface import Model

OUTLIER_RATIO = 16.0
"""Random keys have about 3, SmolLM2-135M 5 to 15 by layer, keys with a bias like Qwen2's 50 and more."""
_NUM_TOKENS = 512
_BLOCK_SIZE = 32
_STRIDE = 40_503  # odd, near 2^16 / golden ratio: token ids that are spread over the vocabulary, the same every time


@torch.inference_mode()
def key_outlier_ratios(
    model: Model, *, dtype: torch.dtype, device: torch.device, backend: str = "torch"
) -> torch.Tensor:
    """Run a fixed sequence and measure its keys.

    Returns:
        [num_layers, num_kv_heads] fp32: the absmax of a token's key (median over tokens) by the rms of a channel
        (median over channels).
    """
    config = model.config
    num_tokens = min(_NUM_TOKENS, config.max_position)
    num_blocks = -(-num_tokens // _BLOCK_SIZE)
    layout = KVLayout(
        config.num_layers, config.num_kv_heads, config.head_dim, block_size=_BLOCK_SIZE, itemsize=dtype.itemsize
    )
    cache = KVCache.allocate(layout, num_blocks=num_blocks, dtype=dtype, device=device)
    request = ScheduledRequest(
        request_id="probe",
        token_ids=(np.arange(num_tokens) * _STRIDE % config.vocab_size).astype(np.int32),
        num_computed_tokens=0,
        block_ids=list(range(num_blocks)),
        sampling=SamplingParams(max_tokens=1),
        seed=0,
        sample=True,
    )
    inputs = build_inputs([request], _BLOCK_SIZE)
    plans = cache.plan_step(inputs.paged, backend=backend)
    input_ids, positions, sample_rows = (
        torch.from_numpy(array).to(device) for array in (inputs.input_ids, inputs.positions, inputs.sample_rows)
    )
    model.forward(input_ids, positions, sample_rows, cache, plans)
    return torch.stack([_ratios(layer.key, num_tokens) for layer in cache.layers]).cpu()


def outlier_layers(ratios: torch.Tensor) -> frozenset[int]:
    """Return the layers where any head of [num_layers, num_kv_heads] is over the threshold."""
    return frozenset((ratios > OUTLIER_RATIO).any(dim=1).nonzero().flatten().tolist())


def _ratios(key: torch.Tensor, num_tokens: int) -> torch.Tensor:
    """[num_kv_heads] of keys [num_blocks, num_kv_heads, block_size, head_dim]."""
    tokens = key.transpose(0, 1).flatten(1, 2)[:, :num_tokens].float()
    absmax = tokens.abs().amax(dim=-1).median(dim=-1).values
    channel_rms = tokens.square().mean(dim=1).sqrt().median(dim=-1).values
    return absmax / channel_rms.clamp_min(torch.finfo(torch.float32).tiny)
