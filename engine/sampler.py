"""From logits to tokens, all rows at once and on their device, with nothing read back.

A draw depends on (seed, position) and the request's own logits, never on the batch.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from engine.batch import ScheduledRequest
from engine.device import to_device
from engine.grammars import mask_bytes

NOT_FINITE = -1
"""In place of a token: the row holds a value that is not finite, so nothing can be said about it."""
_GREEDY_BELOW = 1e-5  # colder, the scaled logits could overflow
_BIASES = np.where(np.arange(256)[:, None] & (1 << np.arange(8)), -0.0, -np.inf).astype(np.float32)
"""[256, 8] what each byte of a mask adds to the logits of its tokens; to add -0.0 changes no value at all."""
_NUCLEUS_GUESSES = (256, 4096, 1 << 62)  # most nuclei are small; sorting 256 of 49,152 values is 40 times faster


class Sampler:
    """Bias and penalties, then what grammars allow, then greedy, or temperature, min-p, top-k and top-p in this order."""

    def sample(self, logits: torch.Tensor, requests: Sequence[ScheduledRequest]) -> torch.Tensor:
        """Choose the next token of each row.

        Args:
            logits: [num_rows, vocab_size], fp32.
            requests: one a row.

        Returns:
            [num_rows] int64 on the device of the logits: tokens, or `NOT_FINITE`.
        """
        finite = logits.sum(dim=-1).isfinite()  # one pass: nothing that is not finite leaves a sum finite
        logits = _mask(_edit(logits, requests), requests)
        tokens = logits.argmax(dim=-1)
        drawn = [row for row, request in enumerate(requests) if request.sampling.temperature >= _GREEDY_BELOW]
        if drawn:
            warm = [requests[row] for row in drawn]
            if len(drawn) == len(requests):
                tokens = _draw(logits, warm)
            else:
                rows = to_device(np.array(drawn, dtype=np.int64), logits.device)
                tokens = tokens.index_copy(0, rows, _draw(logits.index_select(0, rows), warm))
        return tokens.where(finite, NOT_FINITE)


def uniform(seed: int, position: int) -> float:
    """Return the number in [0, 1) that belongs to (seed, position).

    Source: SplitMix64, Steele, Lea and Flood 2014, once over the seed and once over the position.
    """
    return (_mix(_mix(seed) + position) >> 11) / (1 << 53)


def _mix(value: int) -> int:
    mask = (1 << 64) - 1
    value = (value + 0x9E3779B97F4A7C15) & mask
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & mask
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & mask
    return value ^ (value >> 31)


def _edit(logits: torch.Tensor, requests: Sequence[ScheduledRequest]) -> torch.Tensor:
    """Apply every row's `LogitEdits`; the logits themselves stay as they are, for others look at them."""
    columns = [
        np.insert(request.edits.columns, 0, row, axis=0)
        for row, request in enumerate(requests)
        if request.edits is not None
    ]
    if not columns:
        return logits
    on_device = to_device(np.concatenate(columns, axis=1), logits.device)
    places = tuple(on_device[:2].long())  # rows and tokens, no pair twice
    bias, factor, penalty = on_device[2:].to(logits.dtype)
    biased = logits[places] + bias
    return logits.index_put(places, torch.where(biased > 0, biased / factor, biased * factor) - penalty)


def _mask(logits: torch.Tensor, requests: Sequence[ScheduledRequest]) -> torch.Tensor:
    """Put -inf where a row's grammar does not allow a token. The device computes the logits while the CPU looks at that.

    Whole bytes of the masks are looked up: that takes a fifth of the time of telling bit by bit and filling in.

    Args:
        logits: [num_rows, vocab_size]; they stay as they are, for others look at them.
        requests: one a row.

    Returns:
        [num_rows, vocab_size]: what is allowed has the very bits of its logit.
    """
    grammars = {row: request.grammar for row, request in enumerate(requests) if request.grammar is not None}
    if not grammars:
        return logits
    vocab_size, device = logits.shape[1], logits.device
    packed = np.zeros((len(grammars), mask_bytes(vocab_size)), dtype=np.uint8)
    for mask, grammar in zip(packed, grammars.values(), strict=True):
        grammar.fill_mask(mask)
    biases = to_device(_BIASES, device).index_select(0, to_device(packed.reshape(-1), device).int())
    rows = to_device(np.array(list(grammars), dtype=np.int64), device)
    return logits.index_add(0, rows, biases.view(len(grammars), -1)[:, :vocab_size])


def _draw(logits: torch.Tensor, requests: Sequence[ScheduledRequest]) -> torch.Tensor:
    """Invert each row's cumulative distribution, in the order of token ids, at its point of the mass that is kept."""
    vocab_size = logits.shape[1]
    settings = [
        (
            request.sampling.temperature,
            request.sampling.top_p,
            min(request.sampling.top_k, vocab_size) or vocab_size,
            request.sampling.min_p,
            uniform(request.seed, request.num_computed_tokens + request.num_new_tokens),
        )
        for request in requests
    ]
    on_device = to_device(np.array(settings, dtype=np.float64), logits.device)
    temperature, top_p, top_k, min_p, point = torch.split(on_device, 1, dim=1)  # [num_rows, 1] each
    scaled = logits / temperature.to(logits.dtype)
    if any(share > 0.0 for _, _, _, share, _ in settings):
        lowest = scaled.amax(dim=-1, keepdim=True) + min_p.log().to(scaled.dtype)
        scaled = scaled.masked_fill(scaled < lowest, -torch.inf)
    largest_k = max((k for _, _, k, _, _ in settings if k < vocab_size), default=0)
    if largest_k:
        scaled = _keep_top_k(scaled, top_k.long(), largest_k)
    probabilities = scaled.softmax(dim=-1)
    if any(p < 1.0 for _, p, _, _, _ in settings):
        probabilities = _keep_nucleus(probabilities, top_p)
    cumulative = probabilities.double().cumsum(dim=-1)
    tokens = torch.searchsorted(cumulative, cumulative[:, -1:] * point, right=True)
    return tokens.squeeze(1).clamp_max(vocab_size - 1)


def _keep_top_k(scaled: torch.Tensor, top_k: torch.Tensor, largest_k: int) -> torch.Tensor:
    """Put -inf below the k-th largest value of each row that has a k; ties stay in."""
    largest = scaled.topk(largest_k, dim=-1).values
    threshold = largest.gather(1, top_k.clamp_max(largest_k) - 1).masked_fill(top_k == scaled.shape[1], -torch.inf)
    return scaled.masked_fill(scaled < threshold, -torch.inf)


def _keep_nucleus(probabilities: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """Put 0 below the smallest probability in the smallest set that holds `top_p` of a row's mass; ties stay in."""
    vocab_size = probabilities.shape[1]
    if probabilities.device.type != "cpu":  # asking whether a guess was enough would cost a device its queue
        threshold = _nucleus_threshold(probabilities, top_p, vocab_size)[0]
        return probabilities.masked_fill(probabilities < threshold, 0.0)
    threshold = torch.zeros_like(top_p, dtype=probabilities.dtype)
    rows = torch.arange(len(top_p))
    for size in _NUCLEUS_GUESSES:
        part = probabilities if len(rows) == len(top_p) else probabilities.index_select(0, rows)
        found, complete = _nucleus_threshold(part, top_p.index_select(0, rows), min(size, vocab_size))
        threshold.index_copy_(0, rows, found)
        if not len(rows := rows[~complete]):
            break
    return probabilities.masked_fill(probabilities < threshold, 0.0)


def _nucleus_threshold(
    probabilities: torch.Tensor, top_p: torch.Tensor, size: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Thresholds [num_rows, 1], and whether the `size` most likely tokens of a row were enough to find it."""
    largest = probabilities.topk(size, dim=-1).values
    num_missing = (largest.double().cumsum(dim=-1) < top_p).sum(dim=-1, keepdim=True)  # before the set is complete
    everything = top_p >= 1.0
    threshold = largest.gather(1, num_missing.clamp_max(size - 1)).masked_fill(everything, 0.0)
    return threshold, ((num_missing < size) | everything | (size == probabilities.shape[1])).squeeze(1)
