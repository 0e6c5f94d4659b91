"""Any order of requests, ends, failures and time: no slot leaks, no window holds more than its limit."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from gateway.auth import Identity
from gateway.errors import GatewayError
from gateway.limits.limiter import Limiter, Ticket
from gateway.limits.limits import LimitBook, Limits
from tests.gateway.limits.test_limiter import Clock

IDENTITIES = (Identity("a", "a1"), Identity("a", "a2"), Identity("b", "b1"))
MINUTE_TOKENS, DAY_TOKENS, MINUTE_REQUESTS, CONCURRENCY, KEY_CONCURRENCY = 100, 500, 6, 3, 2


class Traffic(RuleBasedStateMachine):
    """The tenants' limits are the defaults; key `a1` has one of its own. The model knows the tickets that are open."""

    tickets = Bundle("tickets")

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        self.book = LimitBook(
            Limits(
                requests_per_minute=MINUTE_REQUESTS,
                tokens_per_minute=MINUTE_TOKENS,
                tokens_per_day=DAY_TOKENS,
                concurrency=CONCURRENCY,
            )
        )
        self.book.replace({}, {"a1": {"concurrency": KEY_CONCURRENCY}})
        self.limiter = Limiter(self.book, clock=self.clock)
        self.open: dict[int, tuple[Ticket, Identity, int]] = {}
        self.num_made = 0

    @rule(target=tickets, identity=st.sampled_from(IDENTITIES), num_tokens=st.integers(1, MINUTE_TOKENS + 20))
    def come(self, identity: Identity, num_tokens: int) -> int:
        self.num_made += 1
        try:
            ticket = self.limiter.admit(identity)
        except GatewayError:
            return 0
        try:
            ticket.reserve(num_tokens)
        except GatewayError:
            ticket.close()
            return 0
        assert num_tokens <= MINUTE_TOKENS
        self.open[self.num_made] = (ticket, identity, num_tokens)
        return self.num_made

    @rule(number=consumes(tickets), used=st.floats(0, 1), times=st.integers(1, 2))
    def end(self, number: int, used: float, times: int) -> None:
        if number in self.open:
            ticket, _, num_tokens = self.open.pop(number)
            for _ in range(times):
                ticket.settle(int(used * num_tokens))
                ticket.close()

    @rule(number=tickets)
    def settle_and_run_on(self, number: int) -> None:
        if number in self.open:
            ticket, identity, num_tokens = self.open[number]
            ticket.settle(num_tokens // 2)
            self.open[number] = (ticket, identity, 0)

    @rule(number=consumes(tickets))
    def fail(self, number: int) -> None:
        if number in self.open:
            ticket, _, _ = self.open.pop(number)
            try:
                with ticket:
                    raise RuntimeError
            except RuntimeError:
                pass

    @rule(seconds=st.sampled_from([0.5, 20.0, 59.0, 61.0, 90_000.0]))
    def wait(self, seconds: float) -> None:
        self.clock.now += seconds

    @rule(tenant=st.sampled_from(["a", "b"]), amount=st.sampled_from([1, 5, None]))
    def change_concurrency(self, tenant: str, amount: int | None) -> None:
        self.book.replace({tenant: {"concurrency": amount}}, {"a1": {"concurrency": KEY_CONCURRENCY}})

    @invariant()
    def slots_are_those_of_open_tickets(self) -> None:
        held: dict[str, int] = {}
        for ticket, _, _ in self.open.values():
            for slots in ticket._allowance.slots:
                held[slots.key] = held.get(slots.key, 0) + 1
        assert self.limiter.slots_in_use() == held
        assert held.get("a1", 0) <= KEY_CONCURRENCY

    @invariant()
    def counts_are_within_limits(self) -> None:
        for counter in self.limiter._counters._counters.values():
            assert counter.count >= 0
        for identity in IDENTITIES:
            allowance = self.book.of(identity)
            assert allowance is not None
            for window in (*allowance.requests, *allowance.tokens):
                state = self.limiter._state(window)
                assert 0 <= state.remaining <= state.limit

    def teardown(self) -> None:
        for ticket, _, _ in self.open.values():
            ticket.close()
        assert self.limiter.slots_in_use() == {}


TestTraffic = Traffic.TestCase
TestTraffic.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
