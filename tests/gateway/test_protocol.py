"""What clients write on the socket itself."""

from __future__ import annotations

import asyncio
import json

import pytest

from gateway.app import create_app
from gateway.model_files import ModelFiles
from gateway.settings import Settings
from tests.gateway.support.fake_backend import FakeBackend
from tests.gateway.support.server import running
from tests.gateway.test_chat import PATH, chat

BODY = json.dumps(chat()).encode()
H2C = b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABkAAQAoAAA\r\n"
WEBSOCKET = b"upgrade: websocket\r\nconnection: Upgrade\r\nsec-websocket-version: 13\r\n"
LENGTH = b"content-length: %d\r\n" % len(BODY)
CHUNKED = b"transfer-encoding: chunked\r\n"
CHUNKS = b"%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)
GET = b"GET /v1/models HTTP/1.1\r\nhost: x\r\n"


def post(headers: bytes, body: bytes) -> bytes:
    return f"POST {PATH} HTTP/1.1\r\nhost: x\r\n".encode() + headers + b"\r\n" + body


async def answers(port: int, *pieces: bytes, number: int) -> list[tuple[bytes, bytes]]:
    """Write pieces and read answers that have a length: heads and bodies."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0.01)
        found = []
        async with asyncio.timeout(20):
            for _ in range(number):
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
                found.append((head, await reader.readexactly(length)))
        return found
    finally:
        writer.close()


@pytest.mark.parametrize(
    "upgrade", [H2C, WEBSOCKET, b"connection: upgrade\r\nupgrade: foo/2\r\nconnection: keep-alive\r\n"]
)
@pytest.mark.parametrize(("framing", "body"), [(LENGTH, BODY), (CHUNKED, CHUNKS)], ids=["length", "chunked"])
@pytest.mark.parametrize("cut", [None, 60, -30, 5], ids=["whole", "in-head", "in-body", "in-line"])
async def test_upgrade_is_ignored_and_the_body_is_read(
    backend: FakeBackend,
    model_files: ModelFiles,
    caplog: pytest.LogCaptureFixture,
    upgrade: bytes,
    framing: bytes,
    body: bytes,
    cut: int | None,
) -> None:
    request = post(upgrade + framing, body)
    pieces = [request] if cut is None else [request[:cut], request[cut:]]
    async with running(create_app(Settings(), backend, model_files)) as port:
        ((head, answer),) = await answers(port, *pieces, number=1)
    assert head.startswith(b"HTTP/1.1 200")
    assert json.loads(answer)["object"] == "chat.completion"
    assert not [record for record in caplog.records if record.levelname in ("WARNING", "ERROR")]


async def test_upgrade_requests_in_a_pipeline_are_answered_in_order(
    backend: FakeBackend, model_files: ModelFiles
) -> None:
    requests = GET + b"\r\n" + GET + H2C + b"\r\n" + post(H2C + LENGTH, BODY) + GET + b"\r\n"
    async with running(create_app(Settings(), backend, model_files)) as port:
        found = await answers(port, requests, number=4)
    assert [head[:12] for head, _ in found] == [b"HTTP/1.1 200"] * 4
    assert [json.loads(body)["object"] for _, body in found] == ["list", "list", "chat.completion", "list"]


async def test_upgrade_that_also_closes_closes(backend: FakeBackend, model_files: ModelFiles) -> None:
    headers = b"connection: close, Upgrade\r\nupgrade: h2c\r\n" + LENGTH
    async with running(create_app(Settings(), backend, model_files)) as port:
        ((head, _),) = await answers(port, post(headers, BODY), number=1)
    assert head.startswith(b"HTTP/1.1 200")
    assert b"connection: close" in head


async def test_no_http_is_400(backend: FakeBackend, model_files: ModelFiles) -> None:
    async with running(create_app(Settings(), backend, model_files)) as port:
        ((head, _),) = await answers(port, b"hello\r\n\r\n", number=1)
    assert head.startswith(b"HTTP/1.1 400")


async def test_connect_is_no_method_of_ours(backend: FakeBackend, model_files: ModelFiles) -> None:
    async with running(create_app(Settings(), backend, model_files)) as port:
        ((head, _),) = await answers(port, b"CONNECT /v1/models HTTP/1.1\r\nhost: x\r\n\r\n", number=1)
    assert head[:12] in (b"HTTP/1.1 400", b"HTTP/1.1 405")
