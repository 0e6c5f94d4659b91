"""The whole gateway around the fake backend, in a thread: with a database, keys and limits, for clients that block."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
from anyio.from_thread import start_blocking_portal
from fastapi import FastAPI

from gateway.app import create_app
from gateway.model_files import ModelFiles
from gateway.settings import Settings
from gateway.storage.store import open_store, prepare_database
from gateway.tokenizer import Tokenizer
from tests.gateway.support.fake_backend import FakeBackend
from tests.gateway.support.server import running
from tests.gateway.support.tiny_model import EOS_ID

ADMIN_KEY = "open-sesame"


@dataclass(frozen=True, slots=True)
class EchoServer:
    """One that runs."""

    app: FastAPI
    url: str
    """Without `/v1`."""
    backend: FakeBackend
    tokenizer: Tokenizer

    def say(self, *texts: str) -> None:
        """Give each text as the answer of one request; then the usual one again."""
        self.backend.script.extend(self.tokens(text) for text in texts)

    def tokens(self, text: str) -> list[int]:
        return [*self.tokenizer.encode(text).tolist(), EOS_ID]

    def new_key(self, tenant: str, **limits: int) -> str:
        """Make a tenant with a key; from the first one on every request needs a key."""
        with self._admin() as admin:
            admin.post("/tenants", json={"name": tenant}).raise_for_status()
            admin.patch(f"/tenants/{tenant}", json={"limits": limits}).raise_for_status()
            return str(admin.post("/keys", json={"tenant": tenant}).raise_for_status().json()["key"])

    def make_known(self) -> dict[str, str]:
        """Make one of everything that the admin API names in a path; give the ids."""
        with self._admin() as admin:
            admin.post("/tenants", json={"name": "known"}).raise_for_status()
            key = admin.post("/keys", json={"tenant": "known"}).raise_for_status().json()
            admin.post("/prompts", json={"name": "known", "text": "Be kind. " * 20}).raise_for_status()
            chat = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}
            url, headers = f"{self.url}/v1/chat/completions", {"authorization": f"Bearer {key['key']}"}
            answer = httpx.post(url, json=chat, headers=headers).raise_for_status()
        return {
            "tenant": "known",
            "key_id": key["id"],
            "prompt": "known",
            "version": "1",
            "rule": "crlf_to_lf_system",
            "request_id": answer.headers["x-request-id"],
            "model_id": "tiny",
        }

    def _admin(self) -> httpx.Client:
        return httpx.Client(base_url=f"{self.url}/admin/v1", headers={"authorization": f"Bearer {ADMIN_KEY}"})


@contextlib.contextmanager
def echo_server(files: ModelFiles, folder: Path) -> Iterator[EchoServer]:
    """Serve on a free port; the database lies in a folder."""
    settings = Settings(db=f"sqlite+aiosqlite:///{folder}/prefixgate.db", admin_key=ADMIN_KEY, tool_template="hermes")  # type: ignore[arg-type]
    asyncio.run(prepare_database(settings))
    backend, tokenizer = FakeBackend(max_model_len=2048), Tokenizer(files.tokenizer_file)

    @contextlib.asynccontextmanager
    async def serving() -> AsyncIterator[EchoServer]:
        app = create_app(settings, backend, files, store=open_store(settings))
        async with running(app) as port:
            yield EchoServer(app, f"http://127.0.0.1:{port}", backend, tokenizer)

    with start_blocking_portal() as portal, portal.wrap_async_context_manager(serving()) as server:
        backend.reply = server.tokens("hello world, over the lazy dog")
        yield server
