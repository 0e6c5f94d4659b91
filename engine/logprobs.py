"""Log probabilities of chosen and of likely tokens, as the model gives them: before bias, penalties and temperature."""

from __future__ import annotations

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
        [num_asking, 1 + 2 * most] fp64 on the device: the chosen token's, those of the `most` likeliest, and their ids;
        None: nobody asks.
    """
    asking = [row for row, request in enumerate(requests) if request.sampling.num_logprobs is not None]
    if not asking:
        return None
    most = max(requests[row].sampling.num_logprobs or 0 for row in asking)
    rows = to_device(np.array(asking, dtype=np.int64), logits.device)
    logprobs = logits.index_select(0, rows).log_softmax(dim=-1)
    chosen = logprobs.gather(1, tokens.index_select(0, rows).clamp_min(0)[:, None])
    likeliest = logprobs.topk(min(most, logits.shape[1]), dim=-1)
    return torch.cat((chosen.double(), likeliest.values.double(), likeliest.indices.double()), dim=1)


def read_logprobs(table: torch.Tensor | None, requests: Sequence[ScheduledRequest]) -> dict[str, TokenLogprobs]:
    """Read what was measured, by request; this waits for the device."""
    if table is None:
        return {}
    asking = [request for request in requests if request.sampling.num_logprobs is not None]
    most = table.shape[1] // 2
    read: dict[str, TokenLogprobs] = {}
    for request, (chosen, *rest) in zip(asking, table.tolist(), strict=True):
        num = min(request.sampling.num_logprobs or 0, most)
        top_ids = [int(token_id) for token_id in rest[most : most + num]]
        read[request.request_id] = TokenLogprobs(chosen, top_ids, rest[:num])
    return read
