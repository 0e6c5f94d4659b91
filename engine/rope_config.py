"""Rotary position embedding as config.json tells it, in both spellings. Loads no torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engine.errors import ModelLoadError

ROPE_TYPES = ("default", "linear", "llama3", "yarn")
MOVING_ROPE_TYPES = ("dynamic", "longrope")
"""Their angles change with the length of a sequence, so a cached key would have to be rotated again."""


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary position embedding."""

    theta: float
    kind: str = "default"
    """One of `ROPE_TYPES`."""
    factor: float = 1.0
    """All but default: how much longer the context is than in pre-training."""
    low_freq_factor: float = 1.0
    """llama3."""
    high_freq_factor: float = 1.0
    """llama3."""
    original_max_position: int = 0
    """llama3, yarn: context of the pre-training, in tokens."""
    beta_fast: float = 32.0
    """yarn: pairs of channels that turn more often than this within the old context stay as they were."""
    beta_slow: float = 1.0
    """yarn: those that turn less often are stretched by the factor."""
    truncate: bool = True
    """yarn: the borders between the two are whole pairs."""
    attention_factor: float = 1.0
    """yarn: factor on cosines and sines."""

    @classmethod
    def from_config(cls, raw: Mapping[str, Any]) -> RopeConfig:
        """Read `rope_parameters`, or the older `rope_theta` beside `rope_scaling`.

        Raises:
            ModelLoadError: a kind that is not one of `ROPE_TYPES`.
            KeyError: a parameter that the kind needs is missing.
        """
        given = {**(raw.get("rope_scaling") or {}), **(raw.get("rope_parameters") or {})}
        kind = given.get("rope_type") or given.get("type") or "default"
        theta = float(given.get("rope_theta") or raw.get("rope_theta") or 10_000.0)
        refuse_moving(kind)
        if kind not in ROPE_TYPES:
            raise ModelLoadError(f"RoPE scaling: got {kind!r}, wanted one of {', '.join(ROPE_TYPES)}")
        if kind == "default":
            return cls(theta)
        if kind == "linear":
            return cls(theta, kind, factor=float(given["factor"]))
        longest = raw["max_position_embeddings"]
        original = raw.get("original_max_position_embeddings") or given.get("original_max_position_embeddings")
        original = int(original or longest)
        if kind == "llama3":
            return cls(
                theta,
                kind,
                factor=float(given["factor"]),
                low_freq_factor=float(given["low_freq_factor"]),
                high_freq_factor=float(given["high_freq_factor"]),
                original_max_position=original,
            )
        factor = float(longest / original if given["factor"] is None else given["factor"])
        return cls(
            theta,
            kind,
            factor=factor,
            original_max_position=original,
            beta_fast=float(given.get("beta_fast") or 32),
            beta_slow=float(given.get("beta_slow") or 1),
            truncate=bool(given.get("truncate", True)),
            attention_factor=_attention_factor(given, factor),
        )


def refuse_moving(kind: str) -> None:
    """Raise ModelLoadError for a kind whose angles change with the length of a sequence."""
    if kind in MOVING_ROPE_TYPES:
        raise ModelLoadError(
            f"RoPE scaling: got {kind!r}, whose angles change with the length of a sequence: keys that are cached would "
            f"be wrong; wanted one of {', '.join(ROPE_TYPES)}"
        )


def _attention_factor(given: Mapping[str, Any], factor: float) -> float:
    """What yarn makes the scores sharper by, as given or by its rule.

    Source: Peng et al. 2023, eq. 22; with mscale as DeepSeek's models have it.
    """
    if (named := given.get("attention_factor")) is not None:
        return float(named)
    if given.get("mscale") and given.get("mscale_all_dim"):
        return _mscale(factor, given["mscale"]) / _mscale(factor, given["mscale_all_dim"])
    return _mscale(factor, 1.0)


def _mscale(factor: float, weight: float) -> float:
    return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0
