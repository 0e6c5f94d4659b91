"""What the admin API tells of chats that the context policy cut: nothing is missing, and the sums close."""

from __future__ import annotations

from typing import Any

import pytest

from tests.gateway.context.test_context_ingress import QUESTION, turns, user
from tests.gateway.support.stored_gateway import OpenGateway

SYSTEM = {"role": "system", "content": "Be kind.\r\nBe brief."}
NUM_TURNS = 30


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
async def test_pages_tell_of_cut_chats(open_gateway: OpenGateway) -> None:
    messages = [SYSTEM, *turns(NUM_TURNS), user(QUESTION)]
    async with open_gateway(context_policy="on", accounting_sampling=1.0, store_content=True) as gateway:
        gateway.backend.max_model_len = 2048
        for stop in range(2, len(messages) + 1, 2):
            answer = await gateway.chat(messages=messages[:stop], max_tokens=20)
            assert answer.status_code == 200, answer.text
        told, request_id = answer.json()["context_management"], answer.headers["x-request-id"]
        assert told["applied_edits"]

        async def get(path: str) -> Any:
            page = await gateway.admin.get(path)
            assert page.status_code == 200, page.text
            return page.json()

        explained, savings, losses = [
            await get(path) for path in (f"/requests/{request_id}/explain", "/savings", "/losses")
        ]
        changes = await get(f"/requests/{request_id}/changes")
    num_requests = NUM_TURNS + 1
    prompts = [len(request.token_ids) for request in gateway.backend.requests]
    assert explained["num_prompt_tokens"] == prompts[-1] == told["input_tokens"]
    assert explained["num_cached_tokens"] + explained["num_lost_tokens"] == prompts[-1]
    assert (savings["requests"], savings["sampled_requests"]) == (num_requests, num_requests)
    assert savings["prompt_tokens"] == losses["prompt_tokens"] == sum(prompts)
    fired = {entry["rule"]: entry["fired_requests"] for entry in savings["rules"]}
    assert fired == {"crlf_to_lf_system": num_requests}
    lost = sum(entry["tokens"] for entry in losses["lost"])
    assert losses["possible_tokens"] - lost == losses["cached_tokens"] > 0
    assert losses["prompt_tokens"] - losses["possible_tokens"] == losses["unseen_tokens"]
    assert changes["rules"] == ["crlf_to_lf_system"]
