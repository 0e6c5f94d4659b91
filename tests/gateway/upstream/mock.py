"""An OpenAI-compatible server that does what a test tells it, and remembers what it was sent."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

from gateway.normalize.registry import RuleRegistry
from gateway.settings import Settings
from gateway.storage.store import Store
from gateway.upstream.app import create_upstream_app
from gateway.upstream.options import UpstreamOptions
from gateway.upstream.pool import Timeouts, UpstreamPool
from tests.gateway.support.server import running

PATH = "/v1/chat/completions"
USAGE = {"prompt_tokens": 9, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 4}}
ANSWER = json.dumps(
    {
        "usage": USAGE,  # first, and with blanks: whoever prints it anew is found out
        "id": "chatcmpl-1",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "hé"}, "finish_reason": "stop"}],
    },
    indent=1,
).encode()
STREAM = (
    b'data: {"id":"chatcmpl-1","choices":[{"index":0,"delta":{"content":"h\xc3\xa9"}}],"usage":null}\n\n'
    b'data: {"id":"chatcmpl-1","choices":[{"index":0,"delta":{},"finish_reason":"stop"}],'
    b'"usage":{"prompt_tokens":9,"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":4}}}\n\n'
    b'data: {"id":"chatcmpl-1","choices":[],'
    b'"usage":{"prompt_tokens":9,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":0}}}\n\n'
    b"data: [DONE]\n\n"
)


@dataclass
class MockUpstream:
    """A plain ASGI application."""

    status: int = 200
    pieces: Sequence[bytes] = (ANSWER,)
    content_type: bytes = b"application/json"
    headers: Sequence[tuple[bytes, bytes]] = ()
    hangs_after: int | None = None
    """Pieces that are sent before it says nothing more."""
    breaks_after: int | None = None
    """Pieces that are sent before the connection ends."""
    models_status: int = 200
    bodies: list[bytes] = field(default_factory=list)
    sent_headers: list[list[tuple[bytes, bytes]]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    num_gone: int = 0
    """Requests whose client went away."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self._lifespan(receive, send)
            return
        if scope["method"] == "GET":
            await self._models(scope, send)
            return
        body = b""
        while (message := await receive())["type"] == "http.request":
            body += message["body"]
            if not message.get("more_body"):
                break
        self.bodies.append(body)
        self.paths.append(scope["path"])
        self.sent_headers.append(list(scope["headers"]))
        headers = [(b"content-type", self.content_type), *self.headers]
        if self.hangs_after != 0:
            await send({"type": "http.response.start", "status": self.status, "headers": headers})
        for number, piece in enumerate(self.answer(body)):
            if number == self.hangs_after:
                while (await receive())["type"] != "http.disconnect":
                    pass
                self.num_gone += 1
                return
            if number == self.breaks_after:
                return  # uvicorn ends the connection
            await send({"type": "http.response.body", "body": piece, "more_body": True})
            await asyncio.sleep(0)
        await send({"type": "http.response.body", "body": b""})

    def answer(self, body: bytes) -> Sequence[bytes]:
        """What a body is answered with."""
        return self.pieces

    async def _models(self, scope: Any, send: Any) -> None:
        listing = b'{ "object":"list", "data":[{"id":"m"},{"id":"n"}] }'
        body = listing if scope["path"] == "/v1/models" else b'{"id": "m"}'
        head = {"type": "http.response.start", "status": self.models_status}
        await send({**head, "headers": [(b"content-type", b"application/json")]})
        await send({"type": "http.response.body", "body": body})

    async def _lifespan(self, receive: Any, send: Any) -> None:
        while True:
            kind = (await receive())["type"]
            await send({"type": f"{kind}.complete"})
            if kind == "lifespan.shutdown":
                return


@dataclass
class HangingUp:
    """A server that takes every request and closes the connection."""

    url: str = ""
    num_chats: int = 0

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        self.num_chats += head.startswith(b"POST")
        writer.close()


@contextlib.asynccontextmanager
async def hanging_up() -> AsyncIterator[HangingUp]:
    """Serve it."""
    hanging = HangingUp()
    server = await asyncio.start_server(hanging.answer, "127.0.0.1")
    hanging.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server:
        yield hanging


@dataclass
class Proxy:
    """A gateway on a socket, and a client of it."""

    client: httpx.AsyncClient
    pool: UpstreamPool

    async def chat(self, body: bytes | dict[str, Any] | None = None, **headers: str) -> httpx.Response:
        return await self.post(PATH, body, **headers)

    async def post(self, path: str, body: bytes | dict[str, Any] | None = None, **headers: str) -> httpx.Response:
        content = body if isinstance(body, bytes) else json.dumps(body or BODY).encode()
        return await self.client.post(path, content=content, headers=headers)


BODY = {"model": "m", "messages": [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "hi"}]}


@contextlib.asynccontextmanager
async def proxy_of(
    *upstreams: MockUpstream,
    urls: Sequence[str] = (),
    store: Store | None = None,
    keys: Any = None,
    rules: RuleRegistry | None = None,
    options: dict[str, Any] | None = None,
    timeouts: Timeouts = Timeouts(),  # noqa: B008 -- frozen
    **settings: Any,
) -> AsyncIterator[Proxy]:
    """Serve upstreams, and a gateway before them."""
    async with contextlib.AsyncExitStack() as stack:
        ports = [await stack.enter_async_context(running(upstream)) for upstream in upstreams]  # type: ignore[arg-type]
        all_urls = [*urls, *(f"http://127.0.0.1:{port}" for port in ports)]
        entries = [UpstreamOptions(url=url, **(options or {})) for url in all_urls]
        pool = UpstreamPool(entries, timeouts=timeouts, probe_seconds=0.05)
        app = create_upstream_app(Settings(upstream=entries, **settings), pool, keys=keys, store=store, rules=rules)
        port = await stack.enter_async_context(running(app))
        client = httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=20)
        yield Proxy(await stack.enter_async_context(client), pool)
