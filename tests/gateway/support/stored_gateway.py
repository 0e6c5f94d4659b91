"""One gateway on a database of its own, its operator and its users, all in one process."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import httpx

from gateway.storage.pepper import Pepper
from gateway.storage.store import Store
from tests.gateway.support.fake_backend import FakeBackend

ADMIN = {"authorization": "Bearer open-sesame"}
PEPPER = Pepper("a pepper for tests")


class Gateway:
    """One gateway on a database, and the two who use it."""

    def __init__(self, store: Store, admin: httpx.AsyncClient, backend: FakeBackend) -> None:
        self.store = store
        self.admin = admin
        self.backend = backend

    async def make_key(self, tenant: str, **fields: Any) -> str:
        """A key; its tenant is made where it is missing."""
        await self.admin.post("/tenants", json={"name": tenant})
        answer = await self.admin.post("/keys", json={"tenant": tenant, **fields})
        assert answer.status_code == 201, answer.text
        return str(answer.json()["key"])

    async def chat(self, key: str | None = None, content: str = "hi", **fields: Any) -> httpx.Response:
        headers = {"authorization": f"Bearer {key}".encode() if key else b""}
        body = {"model": "tiny", "messages": [{"role": "user", "content": content}], **fields}
        return await self.admin.post("http://gateway/v1/chat/completions", json=body, headers=headers)


OpenGateway = Callable[..., contextlib.AbstractAsyncContextManager[Gateway]]
