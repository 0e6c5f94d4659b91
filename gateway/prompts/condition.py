"""How registered prompts are, for whoever asks whether anything is wrong with them."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.prompts.drift import Variant
from gateway.prompts.registered import RegisteredVersion
from gateway.prompts.registry import PromptRegistry
from gateway.prompts.warming import EXPIRED, Warmer, WarmState

_DRIFT_SECONDS = 3600.0
"""Drift that was not seen for longer is over."""


@dataclass(frozen=True, slots=True)
class PromptCondition:
    """Of one active version."""

    name: str
    status: str
    """As `WarmState.status`."""
    detail: str | None = None
    """Why it failed, or why it is not pinned."""
    lacks_pin: bool = False
    """It is in the cache and wants to be pinned, and is not."""
    num_drifting: int = 0
    """Requests that almost matched it and that no rule brings back, of variants that still come."""
    drifts_in: str | None = None
    """Where most of them differ: `system, character 17`, `tools[0]`."""


def conditions(registry: PromptRegistry, warmer: Warmer, now: float) -> list[PromptCondition]:
    """Look at the active version of each prompt; `now` in seconds since 1970."""
    return [
        _condition(entry, warmer.state(entry.handle), registry.drift(entry.prompt), now)
        for entry in registry.registered.active
    ]


def _condition(entry: RegisteredVersion, state: WarmState, variants: list[Variant], now: float) -> PromptCondition:
    drifting = [variant for variant in variants if not variant.repaired and now - variant.last_seen < _DRIFT_SECONDS]
    place = drifting[0].place if drifting else None
    drifts_in = None
    if place is not None:
        drifts_in = place.region + ("" if place.character is None else f", character {place.character}")
    is_kept_as_wanted = state.status != "warm" or state.pinned or not entry.version.retention.pin
    return PromptCondition(
        entry.prompt.name,
        state.status,
        state.detail,
        lacks_pin=not is_kept_as_wanted and state.detail != EXPIRED,
        num_drifting=sum(variant.count for variant in drifting),
        drifts_in=drifts_in,
    )
