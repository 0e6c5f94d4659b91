"""What may be limited, for whom, and what of it is in force. Counts nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import NamedTuple

from limits import RateLimitItemPerMinute

from gateway.auth import Identity

LimitChoice = Mapping[str, int | None]
"""What an operator chose for a tenant or key, by name; None: no limit, whatever the default is."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one tenant or key; None: there is none."""

    requests_per_minute: int | None = None
    requests_per_day: int | None = None
    tokens_per_minute: int | None = None
    tokens_per_day: int | None = None
    concurrency: int | None = None
    """Requests at the same time."""


_DAY_MINUTES = 24 * 60
LIMIT_NAMES = tuple(field.name for field in fields(Limits))


class CountedItem(RateLimitItemPerMinute):
    """What the library counts, with the name of its counter: the library would put that together at every call.

    The limit is part of the name, so one that is changed begins to count anew.
    """

    __slots__ = ("key",)

    def __init__(self, amount: int, minutes: int, name: str) -> None:
        super().__init__(amount, minutes)
        self.key = f"{name}/{amount}"

    def key_for(self, *_: bytes | str | int | float) -> str:
        """Name the counter."""
        return self.key


@dataclass(frozen=True, slots=True)
class Window:
    """A limit on what is counted within a minute or a day."""

    name: str
    """Such as `requests_per_minute`."""
    owner: str
    """`tenant` or `key`."""
    item: CountedItem


@dataclass(frozen=True, slots=True)
class Slots:
    """A limit on requests at the same time."""

    owner: str
    amount: int
    key: str


class Allowance(NamedTuple):
    """All that limits one identity."""

    requests: tuple[Window, ...]
    tokens: tuple[Window, ...]
    slots: tuple[Slots, ...]


class LimitBook:
    """The limits in force. Looked up for every request, so what a lookup makes is kept until a limit changes."""

    def __init__(self, default: Limits) -> None:
        self._default = asdict(default)
        self._tenants: Mapping[str, LimitChoice] = {}
        self._keys: Mapping[str, LimitChoice] = {}
        self._made: dict[tuple[str, str | None], Allowance | None] = {}

    def replace(self, tenants: Mapping[str, LimitChoice], keys: Mapping[str, LimitChoice]) -> None:
        """Put other choices in force, by the ids of tenants and keys; the default holds for what a tenant has no choice of."""
        self._tenants, self._keys, self._made = tenants, keys, {}

    def of(self, identity: Identity) -> Allowance | None:
        """Find what limits an identity; None: nothing does."""
        who = (identity.tenant, identity.key_id)
        if who not in self._made:
            self._made[who] = self._make(identity)
        return self._made[who]

    def _make(self, identity: Identity) -> Allowance | None:
        owned = [("tenant", identity.tenant, Limits(**{**self._default, **self._tenants.get(identity.tenant, {})}))]
        if identity.key_id is not None:
            owned.append(("key", identity.key_id, Limits(**self._keys.get(identity.key_id, {}))))
        allowance = Allowance(
            requests=_windows(owned, "requests_per_minute", 1) + _windows(owned, "requests_per_day", _DAY_MINUTES),
            tokens=_windows(owned, "tokens_per_minute", 1) + _windows(owned, "tokens_per_day", _DAY_MINUTES),
            slots=tuple(Slots(owner, own.concurrency, who) for owner, who, own in owned if own.concurrency is not None),
        )
        return allowance if any(allowance) else None


def _windows(owned: list[tuple[str, str, Limits]], name: str, minutes: int) -> tuple[Window, ...]:
    windows = []
    for owner, who, own in owned:
        amount: int | None = getattr(own, name)
        if amount is not None:
            windows.append(Window(name, owner, CountedItem(amount, minutes, f"{who}/{name}")))
    return tuple(windows)
