"""What is done at the dashboard is in the audit log, under its name."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from tests.gateway.dashboard.support import ADMIN_KEY, ORIGIN, OWN_PAGE
from tests.gateway.support.stored_gateway import Gateway

LOGIN, LOGOUT = f"{ORIGIN}/dashboard/login", f"{ORIGIN}/dashboard/logout"


async def test_dashboard_is_the_author_of_what_is_done_there(gateway: Gateway) -> None:
    await gateway.admin.post("/tenants", json={"name": "by-key"})
    bearer = gateway.admin.headers.pop("authorization")
    await gateway.admin.post(LOGIN, json={"key": ADMIN_KEY})
    assert (await gateway.admin.post("/tenants", json={"name": "by-cookie"}, headers=OWN_PAGE)).status_code == 201
    await gateway.admin.post(LOGOUT, headers=OWN_PAGE)
    entries = (await gateway.admin.get("/audit", headers={"authorization": bearer})).json()["data"]
    assert [(entry["actor"].partition("@")[0], entry["action"]) for entry in reversed(entries)] == [
        ("admin", "tenant.create"),
        ("dashboard", "dashboard.login"),
        ("dashboard", "tenant.create"),
        ("dashboard", "dashboard.logout"),
    ]
    assert entries[0]["target"] == entries[2]["target"]


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
async def test_without_the_database_the_operator_still_gets_in(
    gateway: Gateway, caplog: pytest.LogCaptureFixture
) -> None:
    Path(gateway.store.database.place).unlink()
    with caplog.at_level(logging.WARNING, "gateway.dashboard"):
        assert (await gateway.admin.post(LOGIN, json={"key": ADMIN_KEY})).status_code == 204
    assert "dashboard.login is not in the audit log" in caplog.text
