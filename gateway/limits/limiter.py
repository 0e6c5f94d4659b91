"""Admits requests within limits. In one event loop and without waiting, so nothing comes between a check and its count.

Tokens are reserved before they are computed, and settled when it is known how many there were: two requests that come at
once cannot both spend what is left.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import NamedTuple, Self

from limits.strategies import FixedWindowRateLimiter

from gateway.auth import Identity
from gateway.errors import InvalidRequestError, RateLimitError
from gateway.limits.counters import Counters
from gateway.limits.headers import Headers, RateState, limit_headers
from gateway.limits.limits import Allowance, LimitBook, Window

_SLOT_RETRY_SECONDS = 1
"""Nobody knows when a running request ends."""
_NOTHING = Allowance((), (), ())


@dataclass(frozen=True, slots=True)
class _Reservation:
    """Tokens taken from one window."""

    window: Window
    ends_at: float


class LimitUse(NamedTuple):
    """Of one limit."""

    limit: int
    used: int


class Limiter:
    """Counts what each identity asks for, where a limit says so."""

    def __init__(
        self,
        book: LimitBook,
        *,
        note_refusal: Callable[[str], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._book = book
        self._note_refusal = note_refusal
        self._counters = Counters(clock)
        self._strategy = FixedWindowRateLimiter(self._counters)
        self._in_use: Counter[str] = Counter()

    def admit(self, identity: Identity) -> Ticket:
        """Let a request in, and count it. Whoever takes the ticket closes it.

        Raises: RateLimitError: it is one too many, and nothing was counted.
        """
        allowance = self._book.of(identity)
        if allowance is None:
            return Ticket(self, _NOTHING)
        for slots in allowance.slots:
            if self._in_use[slots.key] >= slots.amount:
                raise self._refusal(
                    allowance,
                    "concurrency",
                    f"this {slots.owner} may have {slots.amount} requests at the same time, and has them; try again when "
                    "one of them is done",
                    _SLOT_RETRY_SECONDS,
                )
        self._take(allowance, allowance.requests, 1)
        for slots in allowance.slots:
            self._in_use[slots.key] += 1
        return Ticket(self, allowance)

    def take_aside(self, identity: Identity, num_tokens: int) -> Ticket | None:
        """Take the most tokens that a call on the way of a request may need, beside those of the request itself.

        Returns: what settles and is closed as any ticket; None: so many are not left, and nothing was counted.
        """
        windows = (self._book.of(identity) or _NOTHING).tokens
        if not all(self._strategy.test(window.item, cost=num_tokens) for window in windows):
            return None
        ticket = Ticket(self, Allowance((), windows, ()))
        ticket.reserve(num_tokens)
        return ticket

    def used(self, identity: Identity) -> dict[str, LimitUse]:
        """Say which limits are in force for an identity, by name, and how much of each is used now. Counts nothing."""
        allowance = self._book.of(identity) or _NOTHING
        windows = (*allowance.requests, *allowance.tokens)
        counted = [(one.name, LimitUse(one.item.amount, self._counters.get(one.item.key))) for one in windows]
        running = [("concurrency", LimitUse(one.amount, self._in_use[one.key])) for one in allowance.slots]
        return dict(counted + running)

    def slots_in_use(self) -> dict[str, int]:
        """How many requests of a limited tenant or key run, by its id."""
        return dict(self._in_use)

    def _reserve(self, allowance: Allowance, num_tokens: int) -> list[_Reservation]:
        for window in allowance.tokens:
            if num_tokens > window.item.amount:
                raise InvalidRequestError(
                    f"max_tokens: prompt and answer together may take {num_tokens} tokens, wanted at most "
                    f"{window.item.amount}: {_spelled(window)}; ask for a shorter answer",
                    param="max_tokens",
                )
        self._take(allowance, allowance.tokens, num_tokens)
        return [_Reservation(window, self._counters.get_expiry(window.item.key)) for window in allowance.tokens]

    def _correct(self, reservations: Iterable[_Reservation], num_tokens: int) -> None:
        """Count more, or less, in windows that still run."""
        for reservation in reservations:
            self._counters.correct(reservation.window.item.key, reservation.ends_at, num_tokens)

    def _release(self, allowance: Allowance) -> None:
        for slots in allowance.slots:
            self._in_use[slots.key] -= 1
            if not self._in_use[slots.key]:
                del self._in_use[slots.key]

    def _take(self, allowance: Allowance, windows: tuple[Window, ...], cost: int) -> None:
        """Count in all windows or, where one is full, in none."""
        full = [(self._state(window), window) for window in windows if not self._strategy.test(window.item, cost=cost)]
        if full:
            state, window = max(full, key=lambda pair: pair[0].reset_seconds)
            wait = max(1, math.ceil(state.reset_seconds))
            raise self._refusal(
                allowance,
                window.name,
                f"{_spelled(window)}; {state.remaining} are left and this takes {cost}; try again in {wait} s",
                wait,
            )
        for window in windows:
            self._strategy.hit(window.item, cost=cost)

    def _refusal(self, allowance: Allowance, name: str, message: str, retry_after_seconds: int) -> RateLimitError:
        self._note_refusal(name)
        return RateLimitError(
            f"{name}: {message}", retry_after_seconds=retry_after_seconds, headers=self._headers(allowance)
        )

    def _headers(self, allowance: Allowance) -> Headers:
        return limit_headers("requests", map(self._state, allowance.requests)) + limit_headers(
            "tokens", map(self._state, allowance.tokens)
        )

    def _state(self, window: Window) -> RateState:
        count, reset_seconds = self._counters.state(window.item.key)
        return RateState(window.item.amount, max(0, window.item.amount - count), reset_seconds)


class Ticket:
    """The place of one admitted request. Closing it gives the place back, and what was reserved and never settled."""

    __slots__ = ("_allowance", "_is_closed", "_limiter", "_num_reserved", "_reservations")

    def __init__(self, limiter: Limiter, allowance: Allowance) -> None:
        self._limiter = limiter
        self._allowance = allowance
        self._reservations: list[_Reservation] = []
        self._num_reserved = 0
        self._is_closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def reserve(self, num_tokens: int) -> None:
        """Take the most tokens that the request may need, once, before any is computed.

        Raises: RateLimitError: so many are not left; InvalidRequestError: so many never are.
        """
        if self._allowance.tokens:
            self._num_reserved = num_tokens
            self._reservations = self._limiter._reserve(self._allowance, num_tokens)

    def settle(self, num_tokens: int) -> None:
        """Count what was used in place of what was reserved; once, and nothing after the end of their windows."""
        self._limiter._correct(self._reservations, num_tokens - self._num_reserved)
        self._reservations = []

    def headers(self) -> Headers:
        """Print `x-ratelimit-*` as it is now; empty where nothing is counted."""
        return self._limiter._headers(self._allowance)

    def close(self) -> None:
        """End it; a second time does nothing."""
        if self._is_closed:
            return
        self._is_closed = True
        self.settle(0)
        self._limiter._release(self._allowance)


def _spelled(window: Window) -> str:
    what, _, span = window.name.partition("_per_")
    return f"this {window.owner} may use {window.item.amount} {what} a {span}"
