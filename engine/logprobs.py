"""Log probabilities of chosen and of likely tokens, as the model gives them: before bias, penalties and temperature."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

from engine.batch import ScheduledRequest
from engine.device import to_device
from engine.messages import TokenLogprobs


def measure_logprobs(
    logits: torch.Tensor, tokens: torch.Tensor, requests: Sequence[ScheduledRequest]
) -> torch.Tensor | None:
    """Look at the rows of the requests that ask for it, and read nothing back.

    Args:
        logits: [num_rows, vocab_size], fp32.
        tokens: [num_rows] int64, as chosen; one that is negative is none.
        requests: one a row.

    Returns:
        [num_asking, 2 + 2 * most], see `_measure`; None: nobody asks.
    """
    asking = [row for row, request in enumerate(requests) if request.sampling.num_logprobs is not None]
    if not asking:
        return None
    most = max(requests[row].sampling.num_logprobs or 0 for row in asking)
    rows = to_device(np.array(asking, dtype=np.int64), logits.device)
    return _measure(logits.index_select(0, rows), tokens.index_select(0, rows).clamp_min(0), most)


def read_logprobs(table: torch.Tensor | None, requests: Sequence[ScheduledRequest]) -> dict[str, TokenLogprobs]:
    """Read what was measured, by request; this waits for the device."""
    if table is None:
        return {}
    asking = [request for request in requests if request.sampling.num_logprobs is not None]
    return {
        request.request_id: _read(row, request.sampling.num_logprobs)
        for request, row in zip(asking, table.tolist(), strict=True)
    }


def measure_prompts(logits: torch.Tensor, requests: Sequence[ScheduledRequest]) -> torch.Tensor | None:
    """Look at the rows that tell of prompts, and read nothing back.

    Args:
        logits: [num_scored, vocab_size], fp32: a row for each of the requests' `targets`.
        requests: of the step.

    Returns:
        [num_scored, 2 + 2 * most], see `_measure`; None: nobody asks.
    """
    targets = [request.targets for request in requests if request.targets is not None]
    if not targets:
        return None
    most = max(request.sampling.num_prompt_logprobs or 0 for request in requests)
    return _measure(logits, to_device(np.concatenate(targets).astype(np.int64), logits.device), most)


def read_prompts(
    table: torch.Tensor | None, requests: Sequence[ScheduledRequest], failed: dict[str, str]
) -> dict[str, list[TokenLogprobs]]:
    """Read what was measured, by request, and enter in `failed` whose numbers cannot be used."""
    if table is None:
        return {}
    rows = iter(table.tolist())
    read: dict[str, list[TokenLogprobs]] = {}
    for request in requests:
        if request.targets is not None:
            said = [_read(next(rows), request.sampling.num_prompt_logprobs) for _ in request.targets]
            read[request.request_id] = said
            if not all(math.isfinite(token.logprob) for token in said):
                failed.setdefault(request.request_id, "the model gave a logit that is not finite")
    return read


def _measure(logits: torch.Tensor, tokens: torch.Tensor, most: int) -> torch.Tensor:
    """[num_rows, 2 + 2 * most] fp64 on the device: the token's, its rank, those of the `most` likeliest, and their ids."""
    logprobs = logits.log_softmax(dim=-1)
    chosen = logprobs.gather(1, tokens[:, None])
    rank = (logprobs > chosen).sum(dim=-1, keepdim=True) + 1
    likeliest = logprobs.topk(min(most, logits.shape[1]), dim=-1)
    return torch.cat((chosen.double(), rank.double(), likeliest.values.double(), likeliest.indices.double()), dim=1)


def _read(row: Sequence[float], wanted: int | None) -> TokenLogprobs:
    logprob, rank, *rest = row
    most = len(rest) // 2
    num = min(wanted or 0, most)
    return TokenLogprobs(logprob, [int(token_id) for token_id in rest[most : most + num]], rest[:num], int(rank))
