"""What is wrong, in words: a fact too many, one at a time, and what comes out."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.problems import (
    LONG_WAIT_SECONDS,
    MANY_WAITING_ROWS,
    MIN_ANSWERS,
    MIN_CUT_REQUESTS,
    MIN_UNSEEN_REQUESTS,
    Facts,
    Problem,
    problems,
)
from gateway.prompts.condition import PromptCondition

WELL = Facts(
    engine_state="ready",
    shared_blocks=99,
    shared_blocks_limit=100,
    looked_up_blocks=1000,
    evicted_misses=49,
    waiting_requests=9,
    waiting_seconds=LONG_WAIT_SECONDS - 1,
    waiting_rows=MANY_WAITING_ROWS - 1,
    answers=1000,
    failed_answers=49,
    limited_answers=49,
    too_long_answers=49,
    context_requests=300,
    context_cuts=99,
    sampling=0.05,
    seen_requests=10_000,
    sampled_requests=1,
    prompts=[PromptCondition("mine", "warm")],
)
"""As near to every limit as may be."""
WARM = PromptCondition("mine", "warm")


def one(name: str, status: str = "warm", **changes: object) -> dict[str, object]:
    return {"prompts": [WARM, PromptCondition(name, status, **changes)]}  # type: ignore[arg-type]


CASES: list[tuple[dict[str, object], str, str, str, str | None]] = [
    ({"engine_state": "starting", "engine_answers": False}, "warning", "engine_not_ready", "starting", None),
    ({"engine_state": "restarting: it died", "engine_answers": False}, "error", "engine_restarting", "(it died)", None),
    ({"engine_state": "failed: no model", "engine_answers": False}, "error", "engine_failed", "(no model)", None),
    ({"engine_answers": False}, "error", "engine_silent", "hangs", None),
    ({"num_upstreams": 2, "silent_upstreams": ["a"]}, "warning", "upstream_down", "a does not answer", None),
    ({"num_upstreams": 2, "silent_upstreams": ["a", "b"]}, "error", "no_upstream", "(a, b)", None),
    ({"database_is_up": False, "waiting_rows": 1234}, "error", "database_down", "1,234 rows", None),
    ({"waiting_rows": MANY_WAITING_ROWS}, "warning", "log_waiting", "2,000 rows", "#/requests"),
    ({"dropped_rows": 1}, "warning", "log_dropped", "dropped", "#/requests"),
    ({"failed_answers": 50}, "warning", "many_errors", "5% of the last 1,000", "#/requests"),
    ({"failed_answers": 500}, "error", "many_errors", "50%", "#/requests"),
    ({"limited_answers": 60}, "warning", "many_limited", "6% of the last 1,000", "#/tenants"),
    ({"too_long_answers": 50}, "info", "many_too_long", "--context-policy on", "#/why"),
    ({"context_cuts": 100}, "info", "frequent_cuts", "100 times lately, in 300 requests", "#/why"),
    (
        {"answers": MIN_ANSWERS, "limited_answers": 0, "too_long_answers": 0, "failed_answers": 10},
        "error",
        "many_errors",
        "100%",
        "#/requests",
    ),
    ({"waiting_seconds": LONG_WAIT_SECONDS}, "warning", "requests_waiting", "engine: 9;", "#/requests"),
    ({"template_faults": ["It prints the date.", "So."]}, "warning", "template_loses_cache", "date. So.", "#/why"),
    (one("a/b c", "failed", detail="too_long"), "warning", "prompt_failed", "a/b c could", "#/prompts/a%2Fb%20c"),
    (one("b", "waiting"), "info", "prompt_cold", "b is not in the cache", "#/prompts/b"),
    (one("b", "not_in_time"), "info", "prompt_cold", "b is not in the cache", "#/prompts/b"),
    (one("b", detail="full", lacks_pin=True), "warning", "prompt_not_pinned", "as wanted: full", "#/prompts/b"),
    (one("b", num_drifting=3, drifts_in="tools[0]"), "warning", "prompt_drift", "in tools[0]", "#/prompts/b"),
    ({"shared_blocks": 100}, "warning", "sharing_cap", "100 of at most 100", "#/why"),
    ({"share_cap_copies": 1}, "warning", "sharing_cap", "1 were copied", "#/why"),
    ({"evicted_misses": 50}, "warning", "small_pool", "5%", "#/why"),
    ({"unsampled_drops": 1}, "warning", "accounting_dropped", "lower", "#/why"),
    ({"sampled_requests": 0}, "info", "accounting_sees_nothing", "None of 10,000", "#/why"),
]


@pytest.mark.parametrize(("changes", "severity", "code", "says", "view"), CASES)
def test_each_fact_that_is_wrong_is_said_and_nothing_else(
    changes: dict[str, object], severity: str, code: str, says: str, view: str | None
) -> None:
    (problem,) = problems(replace(WELL, **changes))
    assert (problem.severity, problem.code, problem.view) == (severity, code, view)
    assert says in problem.text


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"answers": MIN_ANSWERS - 1, "failed_answers": MIN_ANSWERS - 1, "limited_answers": MIN_ANSWERS - 1},
        {"too_long_answers": 1000, "has_context_policy": True},
        {"context_requests": MIN_CUT_REQUESTS - 1, "context_cuts": MIN_CUT_REQUESTS - 1},
        {"waiting_requests": 0, "waiting_seconds": LONG_WAIT_SECONDS},
        {"shared_blocks": 0, "shared_blocks_limit": 0, "share_cap_copies": 7},
        {"seen_requests": MIN_UNSEEN_REQUESTS - 1, "sampled_requests": 0},
        {"sampling": 0.0, "sampled_requests": 0},
        {"sampling": None, "sampled_requests": 0},
    ],
)
def test_what_is_well_is_not_said(changes: dict[str, object]) -> None:
    assert problems(replace(WELL, **changes)) == []
    assert problems(Facts()) == []


def test_prompts_with_the_same_fault_are_one_problem_that_names_a_few() -> None:
    cold = [PromptCondition(f"p{number}", "waiting") for number in range(5)]
    (problem,) = problems(replace(WELL, prompts=cold))
    assert "The registered prompts p0, p1, p2 and 2 more are not" in problem.text
    assert problem.view == "#/prompts"


def test_prompts_are_not_called_cold_where_the_engine_is_down() -> None:
    facts = replace(WELL, prompts=[PromptCondition("p", "waiting")], engine_state="starting", engine_answers=False)
    assert [problem.code for problem in problems(facts)] == ["engine_not_ready"]


@settings(max_examples=40)
@given(st.sets(st.integers(0, len(CASES) - 1)))
def test_the_most_serious_come_first_whatever_is_wrong(chosen: set[int]) -> None:
    changes = {name: value for index in sorted(chosen) for name, value in CASES[index][0].items()}
    assert changes.keys() <= {field.name for field in fields(Facts)}
    found = problems(replace(WELL, **changes))
    severities = [problem.severity for problem in found]
    assert severities == sorted(severities, key=["error", "warning", "info"].index)
    assert len({problem.code for problem in found}) == len(found)
    assert bool(found) == any(_is_wrong(problem) for problem in found) == bool(chosen)


def _is_wrong(problem: Problem) -> bool:
    return bool(problem.text) and (problem.view is None or problem.view.startswith("#/"))
