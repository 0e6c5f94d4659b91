"""A line of the table of `benchmarks.gpu_check`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Row:
    """One measured value."""

    what: str
    value: float | None
    unit: str = ""
    wanted: str = ""
    holds: bool | None = None
    """None: nothing was promised."""

    def shown(self) -> str:
        """The value and its unit."""
        return "-" if self.value is None else f"{self.value:.4g} {self.unit}".strip()


def at_least(what: str, value: float, bound: float, unit: str = "") -> Row:
    """A row that holds when the value reaches the bound."""
    return Row(what, value, unit, f">= {bound:g}", value >= bound)


def at_most(what: str, value: float, bound: float, unit: str = "") -> Row:
    """A row that holds when the value does not exceed the bound; NaN does."""
    return Row(what, value, unit, f"<= {bound:g}", value <= bound)
