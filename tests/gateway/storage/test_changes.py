"""`/admin/v1/requests/{id}/changes`: what rules make of a stored body."""

from __future__ import annotations

import json

import pytest

from gateway.errors import NotFoundError
from gateway.normalize.modes import RuleModes
from gateway.normalize.rules import built_in_rules
from gateway.stored_changes import StoredChanges
from gateway.upstream.endpoints import READ_FORMS
from tests.gateway.storage.conftest import OpenGateway
from tests.gateway.support.stored_gateway import Gateway


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
async def test_what_rules_change_in_a_stored_body_is_shown_with_their_names(open_gateway: OpenGateway) -> None:
    async with open_gateway(store_content=True) as gateway:
        messages = [{"role": "system", "content": "Be kind.\r\nBe brief.  "}, {"role": "user", "content": "hi"}]
        answer = await gateway.chat(messages=messages)
        found = (await gateway.admin.get(f"/requests/{answer.json()['id']}/changes")).json()
        assert set(found["rules"]) == {"crlf_to_lf_system", "trim_end_of_system"}
        lines = found["diff"].split("\n")
        assert lines[:2] == ["--- as it came", "+++ canonical"]
        assert [line for line in lines[3:] if line[0] in "+-"] == [
            "-Be kind.\\r",
            "-Be brief.  ",
            "+Be kind.",
            "+Be brief.",
        ]
        plain = await gateway.chat()
        found = (await gateway.admin.get(f"/requests/{plain.headers['x-request-id']}/changes")).json()
        assert (found["rules"], found["diff"]) == ([], "")
        await gateway.admin.put("/rules/trim_end_of_system", json={"mode": "off"})
        found = (await gateway.admin.get(f"/requests/{answer.json()['id']}/changes")).json()
        assert found["rules"] == ["crlf_to_lf_system"], "those that are in force now"


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
async def test_where_there_is_nothing_to_compare_the_reason_is_said(open_gateway: OpenGateway) -> None:
    async with open_gateway() as gateway:
        answer = await gateway.chat()
        assert "--store-content" in await why_not(gateway, answer.headers["x-request-id"])
        assert "wanted the id of a request" in await why_not(gateway, "nothing")
    async with open_gateway(store_content=True) as gateway:
        completion = await gateway.admin.post("http://gateway/v1/completions", json={"model": "tiny", "prompt": "hi"})
        assert "on /v1/completions no rule runs" in await why_not(gateway, completion.headers["x-request-id"])


@pytest.mark.parametrize(
    ("stored", "says"), [("[]", "got an array"), ('{"messages": 7}', "messages: got 7"), ("{", "unexpected end")]
)
def test_a_body_that_is_no_conversation_is_said_to_be_none(stored: str, says: str) -> None:
    row = {"request_id": "r", "endpoint": "/v1/chat/completions", "tenant_id": "default", "request_body": stored}
    with pytest.raises(NotFoundError, match=f"request r: its body is no conversation: .*{says}"):
        StoredChanges(RuleModes(built_in_rules())).show(row)


def test_in_front_of_upstreams_only_rules_that_run_there_are_said_to_fire() -> None:
    body = {
        "model": "m",
        "system": "Be kind.\r\n",
        "max_tokens": 9,
        "messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}],
    }
    row = {"request_id": "r", "tenant_id": "default", "request_body": json.dumps(body)}
    here, upstream = StoredChanges(RuleModes(built_in_rules())), StoredChanges(RuleModes(built_in_rules()), READ_FORMS)
    fired = [changes.show(row | {"endpoint": "/v1/messages"})["rules"] for changes in (here, upstream)]
    assert "single_part_to_string" in fired[0]
    assert fired[1] == [name for name in fired[0] if name != "single_part_to_string"] != []
    with pytest.raises(NotFoundError, match="on /v1/responses no rule runs"):
        upstream.show(row | {"endpoint": "/v1/responses"})


async def why_not(gateway: Gateway, request_id: str) -> str:
    answer = await gateway.admin.get(f"/requests/{request_id}/changes")
    assert answer.status_code == 404, answer.text
    return str(answer.json()["error"]["message"])
