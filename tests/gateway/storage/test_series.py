"""`GET /series`: what charts draw is what was counted, and is still there after a restart."""

from __future__ import annotations

import time
from typing import Any

import pytest

from gateway.admin_wire import iso_time
from gateway.request_entry import RequestEntry
from tests.gateway.support.stored_gateway import Gateway, OpenGateway

DAY = 86400
NOTHING = {"count": 0, "p50": None, "p95": None}


def entry(at: float, **fields: Any) -> RequestEntry:
    made = RequestEntry("req", "/v1/chat/completions", "default", None, created_at=at)
    for name, value in {"status": 200, **fields}.items():
        setattr(made, name, value)
    return made


async def series(gateway: Gateway, **query: object) -> dict[str, Any]:
    answer = await gateway.admin.get("/series", params=query)  # type: ignore[arg-type]
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


async def test_history_survives_a_restart(open_gateway: OpenGateway) -> None:
    async with open_gateway() as gateway:
        await gateway.chat(content="one " * 20)
        await gateway.chat(content="one " * 19 + "two")
        gateway.store.minutes.add({("possible_tokens", ""): 70})
        before = await series(gateway)
    async with open_gateway() as gateway:
        after = await series(gateway, until=before["until"])
        rows = (await gateway.admin.get("/requests")).json()["data"]
    assert after == before
    (point,) = before["points"]
    assert point.pop("first_token_seconds").keys() == {"hit", "miss"}
    assert before["since"] <= point.pop("at") <= before["until"]
    assert point == {
        "requests": 2,
        "errors": 0,
        "prompt_tokens": sum(row["num_prompt_tokens"] for row in rows),
        "cached_tokens": sum(row["num_cached_tokens"] for row in rows),
        "sampled_prompt_tokens": None,
        "sampled_cached_tokens": None,
        "possible_tokens": 70,
    }


async def test_points_are_the_steps_with_data(gateway: Gateway) -> None:
    noon = time.time() // DAY * DAY - DAY // 2
    tokens = {"num_prompt_tokens": 100, "num_cached_tokens": 50}
    for seconds in (0.31, 0.6, 0.5):
        gateway.store.log.record(entry(noon + 299, first_token_seconds=seconds, **tokens))
    gateway.store.log.record(entry(noon + 299, first_token_seconds=99.0, num_prompt_tokens=100, num_cached_tokens=49))
    gateway.store.log.record(entry(noon + 600, status=503))
    found = await series(gateway, since=noon + 299, until=noon + 601, step=300)
    assert (found["since"], found["until"], found["step"]) == (iso_time(noon), iso_time(noon + 601), 300)
    known, unknown = found["points"]
    assert (known["at"], unknown["at"]) == (iso_time(noon), iso_time(noon + 600))
    assert (known["requests"], known["errors"], known["prompt_tokens"], known["cached_tokens"]) == (4, 0, 400, 199)
    assert known["first_token_seconds"]["hit"] == {"count": 3, "p50": pytest.approx(0.45), "p95": pytest.approx(0.585)}
    assert known["first_token_seconds"]["miss"] == {"count": 1, "p50": 60.0, "p95": 60.0}
    assert (unknown["requests"], unknown["errors"], unknown["prompt_tokens"]) == (1, 1, None)
    assert unknown["first_token_seconds"] == {"hit": NOTHING, "miss": NOTHING}


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
async def test_what_is_no_span_or_has_too_many_steps_is_refused_by_name(gateway: Gateway) -> None:
    until = 1_700_000_000
    for days, step in ((0.04, 60), (1, 300), (8, 2340), (300, 86400), (1499, 86400)):
        assert (await series(gateway, since=until - int(days * DAY), until=until))["step"] == step
    assert (await series(gateway, since=until - 1490 * 60, until=until, step=60))["points"] == []
    for query, said in [
        (
            {"since": until - 1501 * 60, "until": until, "step": 60},
            "step: got 60, wanted a longer one or a shorter time",
        ),
        ({"since": until - 1502 * DAY, "until": until}, "step: got 86400, wanted a longer one or a shorter time"),
        ({"step": 0}, "step: got '0', wanted greater than or equal to 60"),
        ({"step": 90}, "step: got '90', wanted a multiple of 60"),
        ({"step": 86460}, "step: got '86460', wanted less than or equal to 86400"),
        ({"since": until, "until": until}, "since: got 2023-11-14T22:13:20.000Z, wanted a time before until"),
        ({"until": 60}, "since: got 1969-12-31T00:01:00.000Z, wanted a time since 1970"),
        ({"until": "soon"}, "until: got 'soon'"),
        ({"till": 1}, "till: unknown, wanted one of since, until, step"),
    ]:
        answer = await gateway.admin.get("/series", params=query)  # type: ignore[arg-type]
        assert (answer.status_code, answer.json()["error"]["message"][: len(said)]) == (400, said)
