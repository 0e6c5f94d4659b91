"""How an operator wants long conversations cut."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

from gateway.errors import InvalidRequestError, shown
from gateway.normalize.rule import refuse_others

SUMMARIES = ("extractive", "model", "off")


@dataclass(frozen=True, slots=True)
class ContextPolicy:
    """All sizes are tokens, by estimate (`units.Counter`)."""

    high: float = 0.85
    """Share of the room behind the head above which a conversation is cut."""
    low: float = 0.5
    """Share of the room that it is cut to."""
    cut_above: int = 0
    """The high watermark is at most this, and the low one falls with it; 0: the shares alone decide."""
    keep_tool_results: int = 3
    """The last ones are never cleared."""
    clear_at_least: int = 512
    """Tool results are cleared only where this much goes in all: an edit costs the cache all that stands behind it."""
    exclude_tools: tuple[str, ...] = ()
    """Names of tools whose results are never cleared nor compressed."""
    document_tokens: int = 1000
    """A text of a user or a tool that is longer is a document, of which passages are given."""
    passage_share: float = 0.2
    """Share of the low watermark that the passages for one question may take."""
    keep_units: int = 6
    """The last turns are summarized only where no other step brings a chat under the low watermark."""
    summary: Literal["extractive", "model", "off"] = "extractive"
    """Who writes what stands in the place of older turns."""
    summary_share: float = 0.1
    """Share of the low watermark that a summary may take."""
    summary_timeout_seconds: float = 20.0
    """A request waits so long for a summary by the model; then sentences are quoted instead."""
    compress_tool_results_over: int = 0
    """A tool result that is longer is cut to its best passages when it first comes, for good; 0: none is."""

    def watermarks(self, room: int, head_tokens: int = 0) -> tuple[int, int]:
        """Give the high and the low one for a room of so many tokens, of which a head that is never cut takes some.

        They are shares of what the head leaves: else a long one would leave no way between them, and each request be a cut.
        """
        behind = max(0, room - head_tokens)
        high, low = int(self.high * behind), int(self.low * behind)
        most = max(0, self.cut_above - head_tokens)
        if self.cut_above and most < high:
            high, low = most, most * low // high
        return head_tokens + high, head_tokens + low


def policy_of(params: Mapping[str, Any]) -> ContextPolicy:
    """Read an operator's parameters.

    Raises: InvalidRequestError: one is unknown or wrong; `param` is `params.NAME`.
    """
    refuse_others(params, tuple(field.name for field in fields(ContextPolicy)))
    values = {name: _CHECKS[name](name, value) for name, value in params.items()}
    policy = ContextPolicy(**values)
    if policy.low >= policy.high:
        raise _wrong("low", policy.low, f"less than high, which is {policy.high}")
    return policy


def _wrong(name: str, value: object, wanted: str) -> InvalidRequestError:
    field = f"params.{name}"
    return InvalidRequestError(f"{field}: got {shown(value)}, wanted {wanted}", param=field)


def _share(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1:
        raise _wrong(name, value, "a number above 0 and at most 1")
    return float(value)


def _seconds(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= _MAX_SECONDS:
        raise _wrong(name, value, f"seconds, above 0 and at most {_MAX_SECONDS}")
    return float(value)


def _count(least: int) -> Callable[[str, object], int]:
    def check(name: str, value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= _MAX_COUNT:
            raise _wrong(name, value, f"a whole number from {least} to {_MAX_COUNT}")
        return value

    return check


def _names(name: str, value: object) -> tuple[str, ...]:
    if not isinstance(value, list | tuple) or not all(isinstance(entry, str) for entry in value):
        raise _wrong(name, value, "a list of names of tools")
    return tuple(value)


def _summary(name: str, value: object) -> str:
    if value not in SUMMARIES:
        raise _wrong(name, value, f"one of {', '.join(SUMMARIES)}")
    return str(value)


_MAX_COUNT = 2**31 - 1
_MAX_SECONDS = 600
_CHECKS: Mapping[str, Callable[[str, object], Any]] = {
    "high": _share,
    "low": _share,
    "cut_above": _count(0),
    "keep_tool_results": _count(0),
    "clear_at_least": _count(0),
    "exclude_tools": _names,
    "document_tokens": _count(100),
    "passage_share": _share,
    "keep_units": _count(1),
    "summary": _summary,
    "summary_share": _share,
    "summary_timeout_seconds": _seconds,
    "compress_tool_results_over": _count(0),
}
