"""`POST /admin/v1/normalize`: a dry run that changes nothing."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from gateway.model_files import ModelFiles
from gateway.tokenizer import Tokenizer
from tests.gateway.conftest import open_client
from tests.gateway.support.fake_backend import FakeBackend
from tests.gateway.support.tiny_model import TOOL_TEMPLATE, write_model
from tests.gateway.test_system import ADMIN

SYSTEM = "You are kind.  \r\nBe brief. \n"
TOOL = {"type": "function", "function": {"name": "look", "x_unknown": 1}, "x_other": None}


@pytest.fixture(scope="session")
def model_files(tmp_path_factory: pytest.TempPathFactory) -> ModelFiles:
    return write_model(tmp_path_factory.mktemp("tools"), template=TOOL_TEMPLATE)


@pytest.fixture
async def admin(
    backend: FakeBackend, model_files: ModelFiles, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[httpx.AsyncClient]:
    monkeypatch.setenv("PREFIXGATE_ADMIN_KEY", "open-sesame")
    async with open_client(backend, model_files) as client:
        client.headers.update(ADMIN)
        yield client


def body(system: object = SYSTEM, **fields: Any) -> dict[str, Any]:
    messages = [{"role": "system", "content": system}, {"role": "user", "content": " hi \r\n"}]
    return {"model": "any", "messages": messages, **fields}


async def dry(admin: httpx.AsyncClient, request_body: dict[str, Any], **fields: Any) -> dict[str, Any]:
    answer = await admin.post("/admin/v1/normalize", json={"body": request_body, **fields})
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def fired(answer: dict[str, Any]) -> dict[str, str]:
    return {rule["name"]: rule["detail"] for rule in answer["rules"] if rule["fired"]}


async def test_canonical_body_keeps_every_field_and_tells_what_fired(
    admin: httpx.AsyncClient, tokenizer: Tokenizer
) -> None:
    schema = {"type": "json_schema", "json_schema": {"schema": {"b": None, "a": [2, 1]}}}
    answer = await dry(
        admin, body(temperature=0.5, x_unknown={"b": 1, "a": None}, response_format=schema, tools=[TOOL])
    )
    canonical = answer["canonical"]
    assert canonical["messages"][0] == {"role": "system", "content": "You are kind.  \nBe brief."}
    assert canonical["messages"][1] == {"role": "user", "content": " hi \r\n"}
    assert list(canonical) == ["model", "messages", "tools", "temperature", "x_unknown", "response_format"]
    assert list(canonical["x_unknown"]) == ["b", "a"]
    assert canonical["response_format"] == schema
    assert canonical["tools"][0]["function"]["x_unknown"] == 1
    assert {"trim_end_of_system", "crlf_to_lf_system"} <= fired(answer).keys()
    assert fired(answer)["trim_end_of_system"] == "changed messages[0]"
    text = tokenizer.decode(answer["token_ids"])
    assert "You are kind.  \nBe brief.<|stop|>" in text
    assert text.endswith("<|turn|>assistant\n")


async def test_regions_cover_the_tokens_and_name_their_owners(admin: httpx.AsyncClient, tokenizer: Tokenizer) -> None:
    answer = await dry(admin, body(tools=[TOOL]))
    regions, token_ids = answer["regions"], answer["token_ids"]
    assert [regions[0]["start"], regions[-1]["end"]] == [0, len(token_ids)]
    assert all(one["end"] == other["start"] for one, other in itertools.pairwise(regions))
    texts = {entry["owner"]: tokenizer.decode(token_ids[entry["start"] : entry["end"]]) for entry in regions}
    assert texts["messages[0]"].strip() == "You are kind.  \nBe brief."
    assert "hi" in texts["messages[1]"]
    assert '"look"' in texts["tools[0]"]


async def test_a_second_run_of_the_canonical_form_changes_nothing(admin: httpx.AsyncClient) -> None:
    once = await dry(admin, body(tools=[TOOL]))
    again = await dry(admin, once["canonical"])
    assert (again["canonical"], again["token_ids"], fired(again)) == (once["canonical"], once["token_ids"], {})


async def test_off_leaves_the_body_alone_and_audit_tells_what_would_fire(admin: httpx.AsyncClient) -> None:
    off = await dry(admin, body(), mode="off")
    audit = await dry(admin, body(), mode="audit")
    assert off["canonical"] == audit["canonical"] == body()
    assert fired(off) == {}
    assert fired(audit).keys() == fired(await dry(admin, body())).keys() != set()


async def test_single_rules_are_switched(admin: httpx.AsyncClient) -> None:
    answer = await dry(admin, body(), rules=[{"name": "trim_end_of_system", "enabled": False}])
    assert answer["canonical"]["messages"][0]["content"] == "You are kind.  \nBe brief. \n"


async def test_scope_follows_tenant_model_and_images_and_nothing_else(admin: httpx.AsyncClient) -> None:
    def with_image(url: str) -> dict[str, Any]:
        return body([{"type": "text", "text": "x"}, {"type": "image_url", "image_url": {"url": url}}])

    first = (await dry(admin, body()))["scope"]
    assert first == (await dry(admin, body("other", temperature=1), tenant="default"))["scope"]
    others = [
        await dry(admin, body(), tenant="acme"),
        await dry(admin, {**body(), "model": "other"}),
        await dry(admin, with_image("data:a")),
        await dry(admin, with_image("data:b")),
    ]
    assert len({first, *(answer["scope"] for answer in others)}) == 5
    assert others[2]["token_ids"] is None
    assert "messages[0].content[1].type: got 'image_url', wanted 'text'" in others[2]["render_error"]


async def test_bodies_of_every_endpoint_are_tried(admin: httpx.AsyncClient) -> None:
    chat = await dry(admin, body())
    messages = await dry(
        admin,
        {"model": "any", "system": SYSTEM, "messages": [{"role": "user", "content": " hi \r\n"}], "max_tokens": None},
        endpoint="messages",
    )
    responses = await dry(admin, {"model": "any", "instructions": SYSTEM, "input": " hi \r\n"}, endpoint="responses")
    assert chat["canonical"] == messages["canonical"] == responses["canonical"]
    assert chat["token_ids"] == messages["token_ids"] == responses["token_ids"]
    assert chat["scope"] == messages["scope"] == responses["scope"]


async def test_nothing_is_remembered_of_a_dry_run(admin: httpx.AsyncClient) -> None:
    turns = [*body()["messages"], {"role": "assistant", "content": "Yes. "}, {"role": "user", "content": "and?"}]
    echo = [*turns[:2], {"role": "assistant", "content": "Yes."}, turns[3]]
    repaired = await dry(admin, {**body(), "messages": echo}, history=[{**body(), "messages": turns}])
    forgotten = await dry(admin, {**body(), "messages": echo})
    assert repaired["canonical"]["messages"][2]["content"] == "Yes. "
    assert forgotten["canonical"]["messages"][2]["content"] == "Yes."


@pytest.mark.parametrize(
    ("sent", "param", "says"),
    [
        ({}, "body", "missing"),
        ({"body": []}, "body", "got an array with 0 entries, wanted an object"),
        ({"body": {}}, "body.messages", "body.messages: missing"),
        ({"body": {"messages": [{"role": "x"}]}}, "body.messages[0].role", "body.messages[0].role: got 'x'"),
        ({"body": body(), "history": [{}]}, "history[0].messages", "history[0].messages: missing"),
        ({"body": body(), "endpoint": "chat"}, "endpoint", "got 'chat', wanted one of chat.completions"),
        ({"body": body(), "endpoint": "responses"}, "body.input", "body.input: missing"),
        (
            {"body": {"input": "x"}, "history": [body()], "endpoint": "responses"},
            "history[0].input",
            "history[0].input: missing",
        ),
        ({"body": body(), "mode": "maybe"}, "mode", "got 'maybe'"),
        ({"body": body(), "rules": [{"name": "x"}]}, "rules.x", "rules.x: unknown, wanted one of"),
        ({"body": body(), "rules": [{"name": "drop_leading_bom"}] * 2}, "rules[1].name", "twice"),
        (
            {"body": body(), "rules": [{"name": "drop_leading_bom", "params": {"x": 1}}]},
            "rules.drop_leading_bom.params.x",
            "wanted none",
        ),
        ({"body": body(), "rules": [{"name": "drop_leading_bom", "on": 1}]}, "rules[0].on", "rules[0].on: unknown"),
        ({"body": body(), "x": 1}, "x", "unknown"),
    ],
)
async def test_bad_input_names_the_field(admin: httpx.AsyncClient, sent: dict[str, Any], param: str, says: str) -> None:
    answer = await admin.post("/admin/v1/normalize", json=sent)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param
    assert says in answer.json()["error"]["message"]


@pytest.mark.parametrize("number", ["NaN", "Infinity", "1e999"])
async def test_numbers_that_json_has_not_are_refused(admin: httpx.AsyncClient, number: str) -> None:
    sent = f'{{"body": {{"messages": [{{"role": "user", "content": "x"}}], "x": {number}}}}}'
    answer = await admin.post("/admin/v1/normalize", content=sent)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "body")


async def test_it_takes_the_admin_key(admin: httpx.AsyncClient) -> None:
    answer = await admin.post("/admin/v1/normalize", json={"body": body()}, headers={"authorization": "Bearer no"})
    assert answer.status_code == 401


async def test_volatile_text_that_nobody_declared_is_named_with_its_cost(admin: httpx.AsyncClient) -> None:
    text = "You are kind.\nNow: 2031-05-06 07:08:09"
    answer = await dry(admin, body(text))
    (rule,) = (rule for rule in answer["rules"] if rule["name"] == "relocate_volatile")
    start = next(region["start"] for region in answer["regions"] if region["owner"] == "messages[0]")
    lost = len(answer["token_ids"]) - start
    assert not rule["fired"]
    assert rule["detail"] == f"could move clock in messages[0]: where it changes, up to {lost} tokens are lost"
