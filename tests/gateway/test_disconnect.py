"""Clients that go away, over real sockets."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator

import pytest

from gateway.app import create_app
from gateway.model_files import ModelFiles
from gateway.settings import Settings
from tests.gateway.support.fake_backend import FakeBackend
from tests.gateway.support.server import running, until


@pytest.fixture
async def port(backend: FakeBackend, model_files: ModelFiles) -> AsyncIterator[int]:
    async with running(create_app(Settings(), backend, model_files)) as port:
        yield port


async def send_chat(port: int, *, stream: bool) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    body = json.dumps({"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "stream": stream}).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))
    await writer.drain()
    return reader, writer


@pytest.mark.parametrize("stream", [False, True])
async def test_disconnect_while_waiting_for_admission_aborts(port: int, backend: FakeBackend, stream: bool) -> None:
    backend.admit = asyncio.Event()
    _, writer = await send_chat(port, stream=stream)
    await until(lambda: backend.live)
    writer.close()
    await until(lambda: not backend.live)
    assert len(backend.aborted) == 1


@pytest.mark.parametrize("stream", [False, True])
async def test_disconnect_while_generating_aborts(port: int, backend: FakeBackend, stream: bool) -> None:
    backend.reply, backend.delay_seconds = [50] * 400, 0.01
    reader, writer = await send_chat(port, stream=stream)
    if stream:
        await reader.readuntil(b"finish_reason")
    await until(lambda: backend.live)
    writer.close()
    await until(lambda: not backend.live)
    assert len(backend.aborted) == 1


async def test_disconnect_in_the_body_never_reaches_the_engine(port: int, backend: FakeBackend) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 500\r\n\r\n{")
    await writer.drain()
    writer.close()
    await asyncio.sleep(0.05)
    assert backend.requests == []


async def test_disconnect_is_counted_once(port: int, backend: FakeBackend) -> None:
    backend.admit = asyncio.Event()
    _, writer = await send_chat(port, stream=False)
    await until(lambda: backend.live)
    writer.close()
    await until(lambda: not backend.live)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /metrics HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
    text = (await reader.read()).decode()
    writer.close()
    assert "prefixgate_aborted_requests_total 1.0" in text
    assert 'prefixgate_requests_total{endpoint="/v1/chat/completions",status="499"} 1.0' in text


async def test_clients_that_leave_at_any_moment_leave_nothing_behind(port: int, backend: FakeBackend) -> None:
    backend.reply, backend.delay_seconds = [*[50] * 60, 0], 0.003
    moments = random.Random(5)

    async def client(number: int) -> bool:
        reader, writer = await send_chat(port, stream=True)
        try:
            async with asyncio.timeout(moments.uniform(0, 0.3) if number % 4 else 10):
                await reader.readuntil(b"[DONE]")
                return True
        except TimeoutError:
            return False
        finally:
            writer.close()

    finished = await asyncio.gather(*(client(number) for number in range(32)))
    await until(lambda: not backend.live)
    assert all(finished[::4])
    assert sum(finished) < 32
    assert len(set(backend.aborted)) == len(backend.aborted) <= 32 - sum(finished)
