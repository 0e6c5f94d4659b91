"""Registered documents, named by the providers' SDKs, behind a gateway over the engine's own block manager."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import anthropic
import httpx
import openai
import pytest

from engine.config import CacheConfig, EngineConfig
from gateway.app import create_app
from gateway.backends.local import LocalBackend, Supervision
from gateway.model_files import ModelFiles
from gateway.settings import Settings
from gateway.storage.database import Database
from gateway.storage.store import Store
from gateway.tokenizer import Tokenizer
from tests.gateway.support.fake_control import BLOCK_SIZE as FAKE_BLOCK_SIZE
from tests.gateway.support.prompts import SUPPORT, register
from tests.gateway.support.server import running
from tests.gateway.support.stored_gateway import ADMIN, PEPPER, Gateway
from tests.support.chain_worker import COMMAND

pytestmark = pytest.mark.parametrize("url", ["sqlite"], indirect=True)

BLOCK_SIZE = 8
RETURNS = "Returns. " + " ".join(f"In case {number} the parcel goes back by rule {number}." for number in range(3))
TARIFF = "Tariff. " + " ".join(f"Zone {number} costs {number + 3} coins a kilogram." for number in range(3))


@dataclass(frozen=True)
class Desk:
    """A gateway with documents, and keys of two tenants."""

    url: str
    admin: httpx.AsyncClient
    keys: tuple[str, str]

    async def register(self, name: str, text: str, **fields: Any) -> dict[str, Any]:
        answer = await self.admin.post("/prompts", json={"name": name, "text": text, **fields})
        assert answer.status_code == 201, answer.text
        return dict(answer.json())

    async def ask(self, key: str, *documents: str, **fields: Any) -> openai.types.chat.ChatCompletion:
        parts: list[Any] = [{"type": "file", "file": {"file_id": name}} for name in documents]
        question = {"role": "user", "content": [*parts, {"type": "text", "text": f"what does {key[-4:]} get?"}]}
        system = {"role": "system", "content": f"you work for {key[-4:]}"}
        async with openai.AsyncOpenAI(base_url=f"{self.url}/v1", api_key=key, max_retries=0) as client:
            messages: Any = [system, question]
            return await client.chat.completions.create(model="tiny", messages=messages, max_tokens=2, **fields)


@pytest.fixture
async def desk(database: Database, model_files: ModelFiles) -> AsyncIterator[Desk]:
    cache = CacheConfig(block_size=BLOCK_SIZE, num_blocks=400, growth_reserve=0)
    backend = LocalBackend(EngineConfig(model_path="chain", cache=cache), supervision=Supervision(), command=COMMAND)
    store = Store(Database(database.url.render_as_string(hide_password=False)), PEPPER, keeps_content=True)
    settings = Settings(admin_key="open-sesame", store_content=True)  # type: ignore[arg-type]
    async with running(create_app(settings, backend, model_files, store=store)) as port:
        url = f"http://127.0.0.1:{port}"
        async with httpx.AsyncClient(base_url=f"{url}/admin/v1", headers=ADMIN, timeout=60) as admin:
            assert await backend.wait_settled() == "ready"
            keys = []
            for tenant in ("one", "two"):
                assert (await admin.post("/tenants", json={"name": tenant})).status_code == 201
                keys.append(str((await admin.post("/keys", json={"tenant": tenant})).json()["key"]))
            yield Desk(url, admin, (keys[0], keys[1]))


def cached(answer: openai.types.chat.ChatCompletion) -> int:
    assert answer.usage is not None
    assert answer.usage.prompt_tokens_details is not None
    return answer.usage.prompt_tokens_details.cached_tokens or 0


async def test_tenants_share_the_blocks_of_a_public_document_and_not_of_their_own(desk: Desk) -> None:
    made = (await desk.register("returns", RETURNS, scope="public", retention={"pin": True}))["versions"][0]
    one, two = desk.keys
    for key in (one, two):
        answer = await desk.ask(key, "returns")
        assert made["num_tokens"] - BLOCK_SIZE < cached(answer) == made["num_blocks"] * BLOCK_SIZE
        row = (await desk.admin.get(f"/requests/{answer.id}")).json()
        assert row["prompt"] == (await desk.admin.get("/prompts/returns")).json()["id"]
    own = await desk.register("own", TARIFF, scope="one")
    with pytest.raises(
        openai.NotFoundError, match=r"messages\[1\]\.content\[0\]\.file\.file_id: got 'own', wanted the"
    ):
        await desk.ask(two, "own")
    assert cached(await desk.ask(one, own["id"])) >= 0


async def test_tenants_share_several_public_documents_in_whatever_order_they_are_named(desk: Desk) -> None:
    sizes = [
        (await desk.register(name, text, scope="public"))["versions"][0]["num_tokens"]
        for name, text in (("returns", RETURNS), ("tariff", TARIFF))
    ]
    one, two = desk.keys
    await desk.ask(one, "returns", "tariff")
    answer = await desk.ask(two, "tariff", "returns", "tariff")
    assert sum(sizes) - 2 * BLOCK_SIZE < cached(answer) < sum(sizes) + BLOCK_SIZE
    assert answer.usage is not None
    assert answer.usage.prompt_tokens > sum(sizes) + BLOCK_SIZE, "the words of the two differ, and are not shared"


async def test_every_endpoint_and_its_sdk_names_documents_in_its_own_way(desk: Desk) -> None:
    await desk.register("returns", RETURNS, scope="public")
    key = desk.keys[0]
    text, system = "what does it say?", "be kind"
    async with openai.AsyncOpenAI(base_url=f"{desk.url}/v1", api_key=key, max_retries=0) as client:
        parts: list[Any] = [{"type": "file", "file": {"file_id": "returns"}}, {"type": "text", "text": text}]
        messages: list[Any] = [{"role": "system", "content": system}, {"role": "user", "content": parts}]
        chat = await client.chat.completions.create(model="tiny", messages=messages, max_tokens=2)
        said: list[Any] = [{"type": "input_file", "file_id": "returns"}, {"type": "input_text", "text": text}]
        asked: Any = {"model": "tiny", "max_output_tokens": 2, "instructions": system}
        response = await client.responses.create(input=[{"role": "user", "content": said}], **asked)
        assert chat.usage is not None
        assert response.usage is not None
        unknown: Any = [{"role": "user", "content": [{"type": "input_file", "file_id": "file-abc"}]}]
        with pytest.raises(openai.NotFoundError, match=r"input\[0\]\.content\[0\]\.file_id: got 'file-abc', wanted"):
            await client.responses.create(input=unknown, **asked)
    async with anthropic.AsyncAnthropic(base_url=desk.url, api_key=key, max_retries=0) as client:
        source = {"type": "file", "file_id": "returns"}
        blocks: list[Any] = [{"type": "document", "source": source}, {"type": "text", "text": text}]
        body: Any = {"model": "tiny", "system": system, "messages": [{"role": "user", "content": blocks}]}
        message = await client.messages.create(max_tokens=2, **body)
        count = await client.messages.count_tokens(**body)
        source["file_id"] = "file_011"
        with pytest.raises(
            anthropic.NotFoundError, match=r"messages\[0\]\.content\[0\]\.source\.file_id: got 'file_011'"
        ):
            await client.messages.count_tokens(**body)
    usage = message.usage
    num_read = usage.cache_read_input_tokens or 0
    num_tokens = {
        chat.usage.prompt_tokens,
        response.usage.input_tokens,
        usage.input_tokens + num_read + (usage.cache_creation_input_tokens or 0),
        count.input_tokens,
    }
    assert num_tokens == {chat.usage.prompt_tokens}, "the same chat is the same prompt"
    assert num_read == response.usage.input_tokens_details.cached_tokens > 0


def naming(*documents: str) -> dict[str, Any]:
    parts: list[Any] = [{"type": "file", "file": {"file_id": name}} for name in documents]
    return {"messages": [{"role": "user", "content": [*parts, {"type": "text", "text": "what does it say?"}]}]}


@pytest.mark.parametrize("mode", ["off", "on"])
async def test_documents_that_do_not_fit_are_named_with_their_sizes(gateway: Gateway, mode: str) -> None:
    assert (await gateway.admin.put("/rules/context_policy", json={"mode": mode})).status_code == 200
    long = " ".join(f"word{number}" for number in range(75))
    sizes = {
        name: (await register(gateway, name, text=f"{name}. {long}", scope="public"))["versions"][0]["num_tokens"]
        for name in ("first", "second")
    }
    assert max(sizes.values()) < gateway.backend.model_info().max_model_len < sum(sizes.values())
    assert (await gateway.chat(**naming("first"))).status_code == 200
    answer = await gateway.chat(**naming(*sizes))
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (400, "context_length_exceeded", "messages")
    assert f"'first' has {sizes['first']}, 'second' has {sizes['second']}" in error["message"]


async def test_new_version_is_what_is_read_and_a_retired_document_is_not_found(gateway: Gateway) -> None:
    await register(gateway, "returns", text=RETURNS, scope="public", rules={"trim_end_of_system": "off"})
    before = await gateway.chat(**naming("returns"))
    version = {"text": f"{RETURNS} And more.", "activate": True}
    assert (await gateway.admin.post("/prompts/returns/versions", json=version)).status_code == 201
    after = await gateway.chat(**naming("returns"))
    assert before.json()["usage"]["prompt_tokens"] < after.json()["usage"]["prompt_tokens"]
    assert (await gateway.admin.post("/prompts/returns/retire")).status_code == 200
    gone = await gateway.chat(**naming("returns"))
    assert (gone.status_code, gone.json()["error"]["param"]) == (404, "messages[0].content[0].file.file_id")


async def test_documents_stand_behind_the_prompt_that_is_named_and_before_a_system_text(
    gateway: Gateway, tokenizer: Tokenizer
) -> None:
    for name, text in (("support", SUPPORT), ("returns", RETURNS), ("tariff", TARIFF)):
        await register(gateway, name, text=text, scope="public")
    key = await gateway.make_key("one")
    body = naming("returns", "tariff")
    body["messages"].insert(0, {"role": "system", "content": "write in rhymes"})
    assert (await gateway.chat(key, prompt={"id": "support"}, **body)).status_code == 200
    (request,) = gateway.backend.requests
    shown = tokenizer.decode(request.token_ids.tolist())
    places = [shown.index(text) for text in (SUPPORT, RETURNS, TARIFF, "rhymes", "[document returns, above")]
    assert places == sorted(places)
    num_public = request.scopes[0][1] * FAKE_BLOCK_SIZE
    assert TARIFF[:-20] in tokenizer.decode(request.token_ids[:num_public].tolist())
    assert "rhymes" not in tokenizer.decode(request.token_ids[:num_public].tolist())
    assert len(request.scopes) == 2


async def test_dry_run_tells_which_documents_a_body_has_and_where_they_stand(gateway: Gateway) -> None:
    made = await register(gateway, "returns", text=RETURNS, scope="public")
    await register(gateway, "tariff", text=TARIFF, scope="public")
    body = {"model": "tiny", "messages": [*naming("returns")["messages"], {"role": "assistant", "content": "much"}]}
    tried = {"body": body | {"messages": [*body["messages"], *naming("tariff")["messages"]]}, "history": [body]}
    answer = (await gateway.admin.post("/normalize", json=tried)).json()
    assert [(entry["name"], entry["in_head"]) for entry in answer["documents"]] == [
        ("returns", True),
        ("tariff", False),
    ]
    assert answer["documents"][0] == {
        "id": made["id"],
        "name": "returns",
        "version": 1,
        "num_tokens": made["versions"][0]["num_tokens"],
        "in_head": True,
    }
    assert answer["canonical"]["messages"][0] == {"role": "system", "content": RETURNS}
    assert answer["regions"][1]["owner"] == "messages[0]"
    await gateway.chat(messages=tried["body"]["messages"])
    assert gateway.backend.requests[-1].token_ids.tolist() == answer["token_ids"]
    wrong = await gateway.admin.post("/normalize", json={"body": naming("file-abc")})
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (404, "body.messages[0].content[0].file.file_id")


async def test_dry_run_takes_a_tenant_by_its_name(gateway: Gateway) -> None:
    made = (await gateway.admin.post("/tenants", json={"name": "acme"})).json()
    await register(gateway, "tariff", text=TARIFF, scope="acme")
    for tenant in ("acme", made["id"]):
        answer = await gateway.admin.post("/normalize", json={"body": naming("tariff"), "tenant": tenant})
        assert [entry["name"] for entry in answer.json()["documents"]] == ["tariff"], tenant
    nobody = await gateway.admin.post("/normalize", json={"body": naming("tariff"), "tenant": "any label"})
    assert nobody.status_code == 404
