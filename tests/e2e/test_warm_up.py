"""A prompt that is warmed in the real engine, and the first chat that begins with it."""

from __future__ import annotations

import httpx
import orjson
import pytest

from gateway.app import create_app
from gateway.auth import Identity
from gateway.backends.local import local_backend, resolve_model
from gateway.chat_request import parse_chat_request
from gateway.ingress import Ingress
from gateway.normalize.modes import RuleModes
from gateway.normalize.rules import built_in_rules
from gateway.prefix import PrefixHasher
from gateway.rendering import PromptRenderer
from gateway.settings import Settings
from gateway.template import ChatTemplate
from gateway.threads import PromptThreads
from gateway.tokenizer import Tokenizer

pytestmark = pytest.mark.model

SYSTEM = "You are the assistant of a parcel service and answer in one short, polite sentence. " * 20


def chat(user: str) -> dict:
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": user}]
    return {"model": "smollm2-135m-instruct", "messages": messages, "max_tokens": 8, "temperature": 0}


async def test_first_chat_behind_a_warmed_prompt_reports_it_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFIXGATE_ADMIN_KEY", "open-sesame")
    settings = Settings(num_blocks=64)
    files = resolve_model(settings)
    backend = local_backend(settings, files)
    app = create_app(settings, backend, files)
    special_tokens = {"bos_token": files.bos_token, "eos_token": files.eos_token}
    renderer = PromptRenderer(
        ChatTemplate(files.chat_template, special_tokens=special_tokens), Tokenizer(files.tokenizer_file)
    )
    threads = PromptThreads()
    ingress = Ingress(RuleModes(built_in_rules()), renderer, PrefixHasher(), threads)
    transport = httpx.ASGITransport(app)
    headers = {"authorization": "Bearer open-sesame"}
    async with app.router.lifespan_context(app), httpx.AsyncClient(transport=transport, base_url="http://g") as client:
        assert await backend.wait_settled() == "ready"
        model = backend.model_info()
        wanted = parse_chat_request(orjson.dumps(chat("Where is my parcel?")))
        prepared = await ingress.prepare("warm", wanted, route="/", identity=Identity("default"), model=model)
        warmed = await backend.warm(prepared.request)
        num_blocks = len(prepared.request.token_ids) // model.block_size
        assert (warmed.num_cached_tokens, warmed.refusal) == (num_blocks * model.block_size, None)
        assert (await backend.pin("parcels", prepared.request)).refusal is None
        counters = (await client.get("/admin/v1/cache", headers=headers)).json()["counters"]
        assert (counters["prompt_tokens"], counters["cached_tokens"], counters["generated_tokens"]) == (0, 0, 0)

        first = (await client.post("/v1/chat/completions", json=chat("Where is my parcel?"))).json()
        cached = first["usage"]["prompt_tokens_details"]["cached_tokens"]
        assert cached == warmed.num_cached_tokens
        view = (await client.get(f"/admin/v1/requests/{first['id']}/blocks", headers=headers)).json()
        assert view["num_cached_tokens"] == cached
        assert [block["pinned"] for block in view["blocks"][:num_blocks]] == [True] * num_blocks
        assert first["choices"][0]["message"]["content"]
    threads.close()
