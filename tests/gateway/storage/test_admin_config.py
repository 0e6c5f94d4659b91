"""`/admin/v1/config`: what is in force, and what of it may change while serving."""

from __future__ import annotations

from typing import Any

import pytest

from tests.gateway.support.stored_gateway import Gateway


async def config(gateway: Gateway) -> dict[str, Any]:
    return dict((await gateway.admin.get("/config")).json())


async def test_it_shows_what_is_in_force_and_no_secret(gateway: Gateway) -> None:
    shown = await config(gateway)
    assert (shown["max_shared_ratio"], shown["growth_reserve"]) == (0.5, 256)
    assert shown["rules"]["trim_end_of_system"] == "on"
    assert "open-sesame" not in str(shown)
    assert shown["changeable"] == [
        "max_shared_ratio",
        "growth_reserve",
        "request_log_rows",
        "request_log_days",
        "rules",
    ]


async def test_changes_are_in_force_noted_and_shown(gateway: Gateway) -> None:
    sent = {
        "max_shared_ratio": 0.25,
        "growth_reserve": 64,
        "request_log_rows": 7,
        "request_log_days": 0.5,
        "rules": {"trim_end_of_system": "off", "*": "audit"},
    }
    answer = await gateway.admin.patch("/config", json=sent)
    assert answer.status_code == 200, answer.text
    assert answer.json() == await config(gateway)
    for name in ("max_shared_ratio", "growth_reserve", "request_log_rows", "request_log_days"):
        assert answer.json()[name] == sent[name]
    rules = answer.json()["rules"]
    assert (rules["trim_end_of_system"], rules["crlf_to_lf_system"], rules["nfc_system"]) == ("off", "audit", "off")
    options = (await gateway.admin.get("/cache")).json()["options"]
    assert (options["max_shared_ratio"], options["growth_reserve"]) == (0.25, 64)
    assert (gateway.store.log.retention.max_rows, gateway.store.log.retention.max_days) == (7, 0.5)
    actions = [entry["action"] for entry in (await gateway.admin.get("/audit")).json()["data"]]
    assert sorted(actions) == ["cache.change", "config.change", "rule.set", "rule.set"]


async def test_a_mode_alone_keeps_the_parameters_of_a_rule(gateway: Gateway) -> None:
    params = {"tags": ["skills"]}
    await gateway.admin.put("/rules/sort_tagged_lists", json={"mode": "on", "params": params})
    await gateway.admin.patch("/config", json={"rules": {"sort_tagged_lists": "audit"}})
    (choice,) = (await gateway.admin.get("/rules")).json()["choices"]
    assert (choice["mode"], choice["params"]) == ("audit", params)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"block_size": 16}, "block_size"),
        ({"max_shared_ratio": 2}, "max_shared_ratio"),
        ({"request_log_rows": -1}, "request_log_rows"),
        ({"request_log_days": 0}, "request_log_days"),
        ({"rules": {"nope": "on"}, "growth_reserve": 8}, "rules.nope"),
        ({"rules": {"trim_end_of_system": "maybe"}}, "rules.trim_end_of_system"),
    ],
)
async def test_what_is_wrong_is_named_and_nothing_changes(gateway: Gateway, body: dict[str, Any], param: str) -> None:
    before = await config(gateway)
    answer = await gateway.admin.patch("/config", json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
    assert await config(gateway) == before
