"""Misses over HTTP: a real worker process behind the gateway, with a real tokenizer and the chain runner as its model."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from engine.config import CacheConfig, EngineConfig
from gateway.app import create_app
from gateway.backends.local import LocalBackend
from gateway.model_files import ModelFiles
from gateway.settings import Settings
from tests.gateway.support.tiny_model import MODEL_NAME
from tests.gateway.test_local_backend import QUICK, restarted
from tests.gateway.test_system import ADMIN
from tests.support.chain_worker import COMMAND

NUM_BLOCKS = 64
SYSTEM = "You are a helpful assistant that answers every question in one short sentence."


class Served:
    def __init__(self, client: httpx.AsyncClient, backend: LocalBackend) -> None:
        self._client = client
        self.backend = backend

    async def explain(self, system: str, user: str = "hello world", **fields: Any) -> tuple[str, dict[str, Any]]:
        """Ask, and explain it once it has ended; returns the header's reason, too."""
        messages = [{"role": "system", "content": system}, {"role": "user", "content": user}]
        body = {"model": MODEL_NAME, "messages": messages, "max_tokens": 4, **fields}
        answer = await self._client.post("/v1/chat/completions", json=body)
        assert answer.status_code == 200, answer.text
        report = (await self._client.get(f"/admin/v1/requests/{answer.json()['id']}/explain")).json()
        assert report["num_cached_tokens"] == answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
        header = answer.headers["x-prefixgate-cache"]
        return header.partition("reason=")[2].partition(";")[0], report


@pytest.fixture
async def served(model_files: ModelFiles, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Served]:
    monkeypatch.setenv("PREFIXGATE_ADMIN_KEY", "open-sesame")
    config = EngineConfig(model_path="chain", cache=CacheConfig(block_size=8, num_blocks=NUM_BLOCKS))
    backend = LocalBackend(config, supervision=QUICK, command=COMMAND)
    app = create_app(Settings(store_content=True), backend, model_files)
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://gateway", headers=ADMIN) as client,
    ):
        assert await backend.wait_settled() == "ready"
        yield Served(client, backend)


async def test_texts_that_differ(served: Served) -> None:
    assert (await served.explain(f"{SYSTEM} It is 10:41:07."))[1]["reason"] == "never_cached"
    word, clock = await served.explain(f"{SYSTEM} It is 10:42:30.")
    assert (word, clock["reason"]) == ("diverged", "diverged")
    assert clock["common"].endswith("It is 10:4")
    assert (clock["prompt"][:4], clock["cached"][:4]) == ("2:30", "1:07")
    _, emoji = await served.explain(f"{SYSTEM} It is \N{GRINNING FACE}.")
    _, other = await served.explain(f"{SYSTEM} It is \N{GRIMACING FACE}.")  # their last bytes alone differ
    assert other["nearest"] == emoji["id"]
    assert (other["prompt"][0], other["cached"][0]) == ("\N{GRIMACING FACE}", "\N{GRINNING FACE}")
    _, again = await served.explain(f"{SYSTEM} It is 10:41:07.", "hello world")
    assert not again["diverges"]


async def test_evicted_prompt(served: Served) -> None:
    await served.explain(SYSTEM)
    for number in range(12):
        await served.explain(f"{number} the quick brown fox jumps over the lazy dog " * 4)
    word, report = await served.explain(SYSTEM)
    assert (word, report["reason"]) == ("evicted", "evicted")
    assert report["evictions_ago"] > 0
    assert f"with {report['evictions_ago']} more since" in report["sentence"]


async def test_cold_restart_and_what_was_explained_before_it(served: Served) -> None:
    _, before = await served.explain(SYSTEM)
    os.kill(served.backend.worker_process_id or 0, signal.SIGKILL)
    async with asyncio.timeout(20):
        await restarted(served.backend)
    word, report = await served.explain(SYSTEM)
    assert (word, report["reason"], report["num_cached_tokens"]) == ("cold_restart", "cold_restart", 0)
    assert report["id"] != before["id"]
