from __future__ import annotations

from tests.gateway.support.stored_gateway import Gateway


async def test_computing_does_not_count_as_waiting(gateway: Gateway) -> None:
    await gateway.chat(content="hi")
    gateway.backend.seconds_ago = 600
    await gateway.chat(content="hi")
    newest, first = (await gateway.admin.get("/requests")).json()["data"]
    assert first["queue_seconds"] > 0 == newest["queue_seconds"]
