"""The limiter alone, by a clock that tests move."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from gateway.auth import Identity
from gateway.errors import GatewayError, InvalidRequestError, RateLimitError
from gateway.limits.counters import Counters
from gateway.limits.limiter import Limiter
from gateway.limits.limits import LimitBook, Limits

ACME = Identity("acme", "key_1")
ACME_TOO = Identity("acme", "key_2")
OTHER = Identity("other", "key_3")


@dataclass
class Clock:
    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Bench:
    """A limiter and what a test may turn on it."""

    default: Limits = field(default_factory=Limits)
    clock: Clock = field(default_factory=Clock)
    refusals: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.book = LimitBook(self.default)
        self.limiter = Limiter(self.book, note_refusal=self.refusals.append, clock=self.clock)

    def headers(self, identity: Identity = ACME) -> dict[str, str]:
        with self.limiter.admit(identity) as ticket:
            return {name.decode(): value.decode() for name, value in ticket.headers()}


def refusal(call: Callable[[], object]) -> RateLimitError:
    with pytest.raises(RateLimitError) as caught:
        call()
    return caught.value


def test_without_limits_nothing_is_counted() -> None:
    bench = Bench()
    bench.book.replace({"acme": {"concurrency": None}}, {"key_3": {"tokens_per_day": 5}})
    for _ in range(100):
        with bench.limiter.admit(ACME) as ticket:
            ticket.reserve(10**9)
            assert ticket.headers() == []
    assert len(bench.limiter._counters) == 0
    assert bench.limiter.slots_in_use() == {}


def test_requests_are_counted_until_the_minute_is_over() -> None:
    bench = Bench(Limits(requests_per_minute=3))
    for _ in range(3):
        bench.limiter.admit(ACME).close()
        bench.clock.now += 10.25
    error = refusal(lambda: bench.limiter.admit(ACME_TOO))  # another key of the same tenant
    assert str(error) == (
        "requests_per_minute: this tenant may use 3 requests a minute; 0 are left and this takes 1; try again in 30 s"
    )
    assert error.retry_after_seconds == 30
    bench.limiter.admit(OTHER).close()
    bench.clock.now += 29.24
    refusal(lambda: bench.limiter.admit(ACME))
    bench.clock.now += 0.01
    bench.limiter.admit(ACME).close()
    assert bench.refusals == ["requests_per_minute"] * 2


def test_of_two_full_windows_the_one_that_lasts_longer_is_named() -> None:
    bench = Bench(Limits(requests_per_minute=2, requests_per_day=2))
    for _ in range(2):
        bench.limiter.admit(ACME).close()
    error = refusal(lambda: bench.limiter.admit(ACME))
    assert "requests_per_day: " in str(error)
    assert error.retry_after_seconds == 86400


def test_refused_request_counts_nowhere() -> None:
    bench = Bench(Limits(requests_per_minute=10, concurrency=1))
    bench.book.replace({}, {"key_1": {"requests_per_minute": 1}})
    bench.limiter.admit(ACME).close()
    for _ in range(5):
        refusal(lambda: bench.limiter.admit(ACME))
    assert bench.limiter.slots_in_use() == {}
    assert bench.headers(ACME_TOO)["x-ratelimit-remaining-requests"] == "8"


def test_key_is_limited_within_its_tenant() -> None:
    bench = Bench()
    bench.book.replace({"acme": {"requests_per_minute": 3}}, {"key_1": {"requests_per_minute": 1}})
    bench.limiter.admit(ACME).close()
    assert "this key may use 1 requests a minute" in str(refusal(lambda: bench.limiter.admit(ACME)))
    for _ in range(2):
        bench.limiter.admit(ACME_TOO).close()
    assert "this tenant may use 3" in str(refusal(lambda: bench.limiter.admit(ACME_TOO)))


def test_what_a_tenant_has_no_choice_of_is_the_default() -> None:
    bench = Bench(Limits(requests_per_minute=5, concurrency=1))
    bench.book.replace({"acme": {"requests_per_minute": None}, "other": {"requests_per_minute": 9}}, {})
    assert "x-ratelimit-limit-requests" not in bench.headers(ACME)
    assert bench.headers(OTHER)["x-ratelimit-limit-requests"] == "9"
    assert bench.headers(Identity("third"))["x-ratelimit-limit-requests"] == "5"
    with bench.limiter.admit(OTHER):
        refusal(lambda: bench.limiter.admit(OTHER))


def test_tokens_are_reserved_and_settled() -> None:
    bench = Bench(Limits(tokens_per_minute=100))
    first = bench.limiter.admit(ACME)
    first.reserve(70)
    error = refusal(lambda: bench.limiter.admit(ACME).reserve(31))
    assert str(error) == (
        "tokens_per_minute: this tenant may use 100 tokens a minute; 30 are left and this takes 31; try again in 60 s"
    )
    first.settle(20)
    first.settle(20)  # once is enough
    assert dict(first.headers())[b"x-ratelimit-remaining-tokens"] == b"80"
    first.close()
    bench.limiter.admit(ACME).reserve(80)
    assert refusal(lambda: bench.limiter.admit(ACME).reserve(1)).retry_after_seconds == 60


def test_ticket_that_is_closed_without_settling_gives_all_back_once() -> None:
    bench = Bench(Limits(tokens_per_minute=100, tokens_per_day=150, concurrency=2))
    ticket = bench.limiter.admit(ACME)
    ticket.reserve(100)
    for _ in range(3):
        ticket.close()
    assert bench.limiter.slots_in_use() == {}
    with bench.limiter.admit(ACME) as ticket:
        ticket.reserve(100)


def test_tokens_of_a_window_that_ended_are_not_given_back_to_the_next() -> None:
    bench = Bench(Limits(tokens_per_minute=100))
    old = bench.limiter.admit(ACME)
    old.reserve(90)
    bench.clock.now += 61
    bench.limiter.admit(ACME).reserve(60)
    old.settle(0)
    assert refusal(lambda: bench.limiter.admit(ACME).reserve(41)).retry_after_seconds == 60
    bench.limiter.admit(ACME).reserve(40)


def test_more_than_was_reserved_counts_too() -> None:
    bench = Bench(Limits(tokens_per_minute=100))
    with bench.limiter.admit(ACME) as ticket:
        ticket.reserve(10)
        ticket.settle(150)
    assert bench.headers()["x-ratelimit-remaining-tokens"] == "0"


def test_request_that_no_window_can_hold_is_no_matter_of_time() -> None:
    bench = Bench(Limits(tokens_per_minute=100, concurrency=1))
    with pytest.raises(InvalidRequestError) as caught, bench.limiter.admit(ACME) as ticket:
        ticket.reserve(101)
    assert caught.value.param == "max_tokens"
    assert "may take 101 tokens, wanted at most 100: this tenant may use 100 tokens a minute; ask for" in str(
        caught.value
    )
    assert bench.limiter.slots_in_use() == {}
    assert bench.headers()["x-ratelimit-remaining-tokens"] == "100"


def fail_inside(bench: Bench, error: type[BaseException]) -> None:
    with bench.limiter.admit(ACME):
        assert bench.limiter.slots_in_use() == {"acme": 1}
        assert "1 requests at the same time" in str(refusal(lambda: bench.limiter.admit(ACME_TOO)))
        raise error("x")


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, GatewayError])
def test_slot_is_given_back_whatever_happens(error: type[BaseException]) -> None:
    bench = Bench(Limits(concurrency=1))
    for _ in range(3):
        with pytest.raises(error):
            fail_inside(bench, error)
    assert bench.limiter.slots_in_use() == {}


def test_headers_show_the_tightest_window() -> None:
    bench = Bench(Limits(requests_per_minute=5, requests_per_day=7, tokens_per_day=1000))
    assert bench.headers() == {
        "x-ratelimit-limit-requests": "5",
        "x-ratelimit-remaining-requests": "4",
        "x-ratelimit-reset-requests": "1m0s",
        "x-ratelimit-limit-tokens": "1000",
        "x-ratelimit-remaining-tokens": "1000",
        "x-ratelimit-reset-tokens": "0ms",
    }
    bench.clock.now += 61
    for _ in range(2):
        bench.limiter.admit(ACME).close()
    assert bench.headers()["x-ratelimit-limit-requests"] == "5"
    bench.clock.now += 61
    headers = bench.headers()  # the minute's are there again
    assert (headers["x-ratelimit-limit-requests"], headers["x-ratelimit-remaining-requests"]) == ("7", "2")
    assert headers["x-ratelimit-reset-requests"] == "23h57m58s"


def test_limit_that_changes_holds_for_those_who_come() -> None:
    bench = Bench(Limits(concurrency=1))
    running = bench.limiter.admit(ACME)
    bench.book.replace({"acme": {"concurrency": 2}}, {})
    second = bench.limiter.admit(ACME)
    refusal(lambda: bench.limiter.admit(ACME))
    bench.book.replace({"acme": {"concurrency": None}}, {})
    bench.limiter.admit(ACME).close()
    for ticket in (running, second):
        ticket.close()
    assert bench.limiter.slots_in_use() == {}


def test_counters_that_ended_are_forgotten() -> None:
    clock = Clock()
    counters = Counters(clock)
    for number in range(1000):
        counters.incr(f"key {number}", 60)
        clock.now += 1
    assert len(counters) < 130
    assert counters.get("key 0") == 0
    assert counters.get_expiry("key 999") == clock.now - 1 + 60


def test_call_on_the_way_is_counted_beside_its_request() -> None:
    bench = Bench(Limits(tokens_per_day=100))
    with bench.limiter.admit(ACME) as ticket:
        aside = bench.limiter.take_aside(ACME, 70)
        assert aside is not None
        with aside:
            refusal(lambda: ticket.reserve(40))
            aside.settle(50)
    assert bench.headers()["x-ratelimit-remaining-tokens"] == "50"
    assert bench.limiter.take_aside(ACME, 51) is None
    assert bench.limiter.take_aside(ACME, 1000) is None
    assert bench.headers()["x-ratelimit-remaining-tokens"] == "50"
    assert bench.refusals == ["tokens_per_day"]
