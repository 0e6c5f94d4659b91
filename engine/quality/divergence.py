"""How far the next-token distributions of two caches are apart, position by position."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from engine.sampler import uniform

TEMPERATURES = (0.2, 0.5, 0.8, 1.0)
_ROWS_AT_ONCE = 64  # of the vocabulary's width: stays in the CPU's cache
_DRAW_EVERY = 8  # positions; a draw is dear, and neighbours tell nothing new


@dataclass(slots=True)
class Divergence:
    """Sums over all positions seen so far."""

    num_tokens: int = 0
    nll: float = 0.0
    base_nll: float = 0.0
    squared_delta_p: float = 0.0
    num_top1: int = 0
    num_draws: int = 0
    num_same_draws: dict[float, int] = field(default_factory=lambda: dict.fromkeys(TEMPERATURES, 0))
    kl: list[float] = field(default_factory=list)
    """A tensor of each few rows would stay between the large ones in memory, and keep it from being used again."""

    def add(self, base: torch.Tensor, logits: torch.Tensor, targets: Sequence[int], *, position: int) -> None:
        """Take in some positions of one text.

        Args:
            base: [num_tokens, vocab_size], log probabilities of the unquantized cache.
            logits: [num_tokens, vocab_size], fp32.
            targets: the tokens that really follow; one fewer than positions at the end of a text.
            position: of the first row; a draw depends on it.
        """
        self._draw(base, logits, position)
        for start in range(0, len(base), _ROWS_AT_ONCE):
            rows = slice(start, start + _ROWS_AT_ONCE)
            self._add(base[rows], logits[rows].log_softmax(dim=-1), torch.tensor(targets[rows], dtype=torch.int64))

    def report(self) -> dict[str, float]:
        """Return the figures of a row."""
        kl = torch.tensor(self.kl, dtype=torch.float64)
        ppl, base_ppl = math.exp(self.nll / self.num_tokens), math.exp(self.base_nll / self.num_tokens)
        return {
            "ppl": ppl,
            "ppl_delta_ratio": ppl / base_ppl - 1,
            "kl_mean": float(kl.mean()),
            "kl_p999": float(kl.sort().values[int(0.999 * (len(kl) - 1))]),
            "kl_max": float(kl.max()),
            "top1_agreement": self.num_top1 / len(kl),
            "rms_delta_p": math.sqrt(self.squared_delta_p / self.num_tokens),
            **{f"same_draw_t{t}": same / max(self.num_draws, 1) for t, same in self.num_same_draws.items()},
        }

    def _add(self, base: torch.Tensor, own: torch.Tensor, targets: torch.Tensor) -> None:
        probabilities = base.exp()
        self.kl += (probabilities * (base - own)).sum(dim=-1).clamp_min(0.0).tolist()
        self.num_top1 += int((base.argmax(dim=-1) == own.argmax(dim=-1)).sum())
        picked = targets.unsqueeze(1).to(base.device)
        base_target, own_target = (logs[: len(targets)].gather(1, picked).double() for logs in (base, own))
        self.num_tokens += len(targets)
        self.nll -= float(own_target.sum())
        self.base_nll -= float(base_target.sum())
        self.squared_delta_p += float((own_target.exp() - base_target.exp()).square().sum())

    def _draw(self, base: torch.Tensor, logits: torch.Tensor, position: int) -> None:
        points = torch.tensor([uniform(0, position + row) for row in range(0, len(base), _DRAW_EVERY)])
        self.num_draws += len(points)
        for temperature in TEMPERATURES:
            drawn = [_tokens(rows[::_DRAW_EVERY] / temperature, points) for rows in (base, logits)]
            self.num_same_draws[temperature] += int((drawn[0] == drawn[1]).sum())


def _tokens(logits: torch.Tensor, points: torch.Tensor) -> torch.Tensor:
    """[num_rows]: invert the cumulative distribution at a point a row, as the sampler does."""
    cumulative = logits.softmax(dim=-1).double().cumsum(dim=-1)
    wanted = points.to(cumulative).unsqueeze(1) * cumulative[:, -1:]
    return torch.searchsorted(cumulative, wanted, right=True).squeeze(1)
