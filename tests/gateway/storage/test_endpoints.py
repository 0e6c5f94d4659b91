"""Keys and the request log, at the other endpoints as at chat."""

from __future__ import annotations

from typing import Any

import pytest

from tests.gateway.support.stored_gateway import Gateway

HI = [{"role": "user", "content": "hi"}]
BODIES: dict[str, dict[str, Any]] = {
    "/v1/messages": {"model": "tiny", "max_tokens": 50, "messages": HI},
    "/v1/messages/count_tokens": {"model": "tiny", "messages": HI},
    "/v1/completions": {"model": "tiny", "prompt": "hi"},
    "/tokenize": {"prompt": "hi"},
    "/detokenize": {"tokens": [50]},
}


@pytest.mark.parametrize("path", BODIES)
async def test_every_endpoint_needs_the_key_that_others_need(gateway: Gateway, path: str) -> None:
    key = await gateway.make_key("acme")
    url = f"http://gateway{path}"
    for header in ({"x-api-key": key}, {"authorization": f"Bearer {key}"}):
        answer = await gateway.admin.post(url, json=BODIES[path], headers={"authorization": "", **header})
        assert answer.status_code == 200, answer.text
    wrong = await gateway.admin.post(url, json=BODIES[path], headers={"authorization": "", "x-api-key": f"{key}x"})
    assert (wrong.status_code, wrong.json()["error"]["type"]) == (401, "authentication_error")
    assert (wrong.json().get("type") == "error") is path.startswith("/v1/messages")


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/completions"])
@pytest.mark.parametrize("stream", [False, True])
async def test_every_answer_is_in_the_log(gateway: Gateway, path: str, stream: bool) -> None:
    key = await gateway.make_key("acme")
    headers = {"authorization": f"Bearer {key}"}
    answer = await gateway.admin.post(
        f"http://gateway{path}", json={**BODIES[path], "stream": stream, "max_tokens": 3}, headers=headers
    )
    assert answer.status_code == 200
    (row,) = (await gateway.admin.get(f"/requests?endpoint={path}")).json()["data"]
    assert (row["endpoint"], row["status"], row["finish_reason"]) == (path, 200, "length")
    assert (row["is_stream"], row["num_output_tokens"], row["completion_id"]) == (
        stream,
        3,
        gateway.backend.requests[0].request_id,
    )
