"""Fair shares of tenants: the counters alone, and the order they give."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.simulation import Arrival, simulate
from engine.config import SchedulerConfig
from engine.fairness import FairShare
from engine.lanes import LaneQueue
from engine.messages import SamplingParams
from engine.request import Request
from prefixcache.interface import Prompt
from tests.engine.test_scheduler import prompt_of
from tests.support.engine_factory import Transcript, add_request, make_engine


@given(costs=st.lists(st.integers(1, 500), min_size=1, max_size=200), num_tenants=st.integers(2, 6))
def test_share_of_tenants_that_always_wait_differs_by_one_request_at_most(costs: list[int], num_tenants: int) -> None:
    share = FairShare()
    tenants = [str(i) for i in range(num_tenants)]
    given_to = dict.fromkeys(tenants, 0)
    for tenant in tenants:
        share.enter(tenant)
    for cost in costs:
        tenant = min(tenants, key=share.served)
        share.charge(tenant, cost)
        given_to[tenant] += cost
    assert max(given_to.values()) - min(given_to.values()) <= max(costs)


def test_share_who_comes_back_brings_no_credit_and_no_debt_is_forgotten() -> None:
    share = FairShare()
    for tenant in ("busy", "debtor", "idle"):
        share.enter(tenant)
    share.leave("idle")
    share.charge("debtor", 10_000)
    share.leave("debtor")
    share.charge("busy", 1000)
    share.enter("idle")
    share.enter("debtor")
    assert share.served("busy") <= share.served("idle") < share.served("debtor")


def test_share_ever_new_tenants_do_not_starve_one_that_was_served() -> None:
    share = FairShare()
    share.enter("served")
    share.enter("0")
    share.charge("served", 1000)
    for number in range(1, 1000):
        share.enter(str(number))  # before the one that is served leaves: somebody new always waits
        if share.served("served") < share.served(str(number - 1)):
            break
        share.charge(str(number - 1), 10)
        share.leave(str(number - 1))
    assert number < 400


def test_share_forgets_tenants_that_are_owed_nothing() -> None:
    share = FairShare()
    for number in range(10_000):
        share.enter(str(number))
        share.charge(str(number), 5)
        share.leave(str(number))
    assert len(share._served) < 200


@given(data=st.data())
def test_queue_is_first_come_first_served_within_a_tenant(data: st.DataObject) -> None:
    queue = LaneQueue()
    arrivals = data.draw(st.lists(st.integers(0, 99), unique=True, min_size=1, max_size=30))
    for arrival in arrivals:
        prompt = Prompt(range(1), b"", (), 0)  # type: ignore[arg-type]
        request = Request(str(arrival), prompt, SamplingParams(max_tokens=1), seed=0, tenant=str(arrival % 3))
        request.arrival = arrival
        queue.add(request)
    last: dict[str, int] = {}
    while (request := queue.next()) is not None:
        queue.remove(request)
        assert last.get(request.tenant, -1) < request.arrival
        last[request.tenant] = request.arrival
        queue.share.charge(request.tenant, data.draw(st.integers(1, 50)))
    assert len(queue) == 0


def test_scheduler_a_tenant_with_one_request_does_not_wait_behind_a_hundred_of_another() -> None:
    engine, _ = make_engine(max_num_batched_tokens=24, max_num_seqs=2)
    for i in range(100):
        add_request(engine, f"many{i}", prompt_of(20, seed=i), max_tokens=4, tenant="many")
    said = Transcript()
    for _ in range(5):
        said.step(engine)
    add_request(engine, "one", prompt_of(20, seed=1000), max_tokens=4, tenant="one")
    already = len(said.admitted)
    while "one" not in said.admitted:
        said.step(engine)
    assert len(said.admitted) <= already + 2


@settings(max_examples=15, deadline=None)
@given(
    prompts=st.lists(st.integers(20, 400), min_size=2, max_size=2),
    answers=st.lists(st.integers(1, 60), min_size=2, max_size=2),
)
def test_scheduler_two_tenants_with_full_queues_are_served_alike(prompts: list[int], answers: list[int]) -> None:
    load = [Arrival(0.0, f"tenant{t}", prompts[t], answers[t], tenant=str(t)) for t in range(2) for _ in range(150)]
    config = SchedulerConfig(max_num_seqs=8)
    outcome = simulate(load, config, until=12.0)
    sizes = [prompts[t] + 2 * answers[t] for t in range(2)]
    served = [len(outcome.first_token.get(f"tenant{t}", [])) * sizes[t] for t in range(2)]
    if all(len(outcome.first_token.get(f"tenant{t}", [])) < 150 for t in range(2)):
        assert abs(served[0] - served[1]) <= 2 * config.max_num_seqs * max(sizes)


def test_scheduler_tenants_at_equal_demand_get_equal_service() -> None:
    load = [Arrival(0.0, t, 200, 20, tenant=t) for t in "ab" for _ in range(60)]
    outcome = simulate(load, SchedulerConfig(max_num_seqs=4), until=12.0)
    assert 0 < outcome.prefilled["a"] < 60 * 200
    assert outcome.prefilled["a"] == pytest.approx(outcome.prefilled["b"], rel=0.2)
