"""Where a served format's cost in answers stops being acceptable; the exit status of `prefixgate quality`.

The bars are those for dense models of 7 to 8 billion parameters, three times looser below one billion: small models
are hurt most. The perplexity of the two formats that may be a default has a bar of its own there, and so has that of
int8 weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

SMALL_MODEL_PARAMETERS = 1_000_000_000
_SMALL_FACTOR = 3
_DEFAULTS = frozenset({"int8/per_token", "int8/hadamard"})
_DEFAULTS_PPL_DELTA_RATIO = 0.0015
_LONG_WINDOW = 8192
_INT8_WEIGHTS = "w8a8"
_INT8_WEIGHTS_PPL_DELTA_RATIO = 0.006  # what it may lose and still be the default on a CPU
_INT8_WEIGHTS_FACTOR = 4  # of the other bars: weights and activations are in every product, keys and values in two


@dataclass(frozen=True, slots=True)
class Gates:
    """Largest losses that pass."""

    ppl_delta_ratio: float
    kl_mean: float
    kl_p999: float
    top1_loss: float
    """1 - agreement."""
    margin_nats: float
    """A greedy answer may part from the unquantized one only where the call was closer than this."""
    needle_loss: float
    """Share of needles."""

    def breaches(self, row: Mapping[str, Any], base: Mapping[str, Any]) -> list[str]:
        """Say what a row fails; what was not measured is not judged."""
        losses = {
            "ppl_delta_ratio": row.get("ppl_delta_ratio"),
            "kl_mean": row.get("kl_mean"),
            "kl_p999": row.get("kl_p999"),
            "top1_loss": _loss(1.0, row.get("top1_agreement")),
            "margin_nats": row.get("margin_max"),
            "needle_loss": _loss(_found(base), _found(row)),
        }
        return [
            f"{name}: {loss:.6g}, at most {getattr(self, name):g}"
            for name, loss in losses.items()
            if loss is not None and loss > getattr(self, name)
        ]


def gates_for(name: str, *, num_parameters: int, window: int) -> Gates:
    """Return the bars for a format.

    Args:
        name: of the format, with its skipped layers.
        num_parameters: of the model.
        window: tokens of a text; small differences add up in long ones.
    """
    small = num_parameters < SMALL_MODEL_PARAMETERS
    int8_weights = name.startswith(_INT8_WEIGHTS)
    factor = (_SMALL_FACTOR if small else 1) * (_INT8_WEIGHTS_FACTOR if int8_weights else 1)
    long_window = window >= _LONG_WINDOW
    strict = small and name.partition("@")[0] in _DEFAULTS
    ppl_delta_ratio = _DEFAULTS_PPL_DELTA_RATIO if strict else 0.001 * factor
    return Gates(
        ppl_delta_ratio=_INT8_WEIGHTS_PPL_DELTA_RATIO if int8_weights else ppl_delta_ratio,
        kl_mean=(0.01 if long_window else 0.002) * factor,
        kl_p999=0.1 * factor,
        top1_loss=(0.035 if long_window else 0.015) * factor,
        margin_nats=1.0 * factor,
        needle_loss=0.02 * factor,
    )


def _loss(base: float | None, value: float | None) -> float | None:
    return None if base is None or value is None else base - value


def _found(row: Mapping[str, Any]) -> float | None:
    needles = row.get("needles")
    return None if needles is None else float(needles["all"])
