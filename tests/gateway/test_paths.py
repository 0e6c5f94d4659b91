"""Wrong paths and methods."""

from __future__ import annotations

import httpx

from tests.gateway.test_bad_input import PATH, assert_error, chat


async def test_path_with_a_slash_too_many_leads_nowhere(client: httpx.AsyncClient) -> None:
    for path in (f"{PATH}/", "/admin/v1/cache/", "/v1/models/"):
        answer = await client.request(
            "POST" if path.startswith(PATH) else "GET", path, headers={"host": "evil.example"}
        )
        assert answer.status_code == 404
        assert "location" not in answer.headers


async def test_unknown_path_is_404(client: httpx.AsyncClient) -> None:
    assert_error(await client.post("/v1/chats", json=chat()), 404, code="unknown_path", param=None)


async def test_wrong_method_is_405(client: httpx.AsyncClient) -> None:
    answer = await client.get(PATH)
    assert_error(answer, 405, code="method_not_allowed", param=None)
    assert answer.headers["allow"] == "POST"


async def test_all_methods_that_a_path_takes_are_told(client: httpx.AsyncClient) -> None:
    answer = await client.delete("/admin/v1/cache", headers={"authorization": "Bearer open-sesame"})
    assert answer.status_code == 405
    assert answer.headers["allow"] == "GET, PATCH"
