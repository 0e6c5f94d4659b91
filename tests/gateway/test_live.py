"""Live values: one computation for all who listen, none for nobody; and how a stream of them ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager

import httpx
import orjson
import pytest
from starlette.types import Message

from gateway.app import create_app
from gateway.errors import AuthenticationError, TooManyListenersError
from gateway.live import Live
from gateway.model_files import ModelFiles
from gateway.routes import admin_overview
from gateway.routes.admin_overview import LiveEvents
from gateway.settings import Settings
from tests.gateway.support.fake_backend import FakeBackend
from tests.gateway.support.server import running, until
from tests.gateway.test_system import ADMIN

TICK = 0.01


class Counter:
    """Computes 1, 2, 3 …"""

    def __init__(self, *, fails_at: int = 0) -> None:
        self.count = 0
        self.fails_at = fails_at

    async def __call__(self) -> bytes:
        self.count += 1
        if self.count == self.fails_at:
            raise ValueError("once")
        return b"%d" % self.count


async def test_all_listeners_hear_the_same_values_and_one_that_is_slow_misses_some() -> None:
    counter = Counter(fails_at=2)
    live = Live(counter, tick_seconds=TICK)
    async with aclosing(live.listen()) as quick, aclosing(live.listen()) as slow:
        assert await anext(quick) == await anext(slow) == b"1"
        heard = [int(await anext(quick)) for _ in range(3)]
        assert heard == [3, 4, 5]  # the second one failed
        assert int(await anext(slow)) == counter.count == 5
        assert heard[-1] == counter.count


async def test_nothing_is_computed_while_nobody_listens_and_who_comes_later_hears_at_once() -> None:
    counter = Counter()
    live = Live(counter, tick_seconds=TICK)
    await asyncio.sleep(5 * TICK)
    assert counter.count == 0
    async with aclosing(live.listen()) as frames:
        await anext(frames)
    computed = counter.count
    await asyncio.sleep(5 * TICK)
    assert counter.count == computed
    live = Live(counter, tick_seconds=3600)
    async with aclosing(live.listen()) as first, aclosing(live.listen()) as second:
        assert await anext(first) == await anext(second)  # the second did not wait for an hour
    assert counter.count == computed + 1


async def test_so_many_may_listen_and_a_place_is_free_when_one_leaves() -> None:
    live = Live(Counter(), tick_seconds=TICK, max_listeners=1)
    async with aclosing(live.listen()) as frames:
        await anext(frames)
        with pytest.raises(TooManyListenersError, match="at most 1"):
            await anext(live.listen())
    async with aclosing(live.listen()) as frames:
        await anext(frames)


async def test_the_end_comes_at_once_for_who_listens_and_who_would() -> None:
    live = Live(Counter(), tick_seconds=3600)
    async with aclosing(live.listen()) as frames:
        await anext(frames)
        waiting = asyncio.ensure_future(anext(frames, None))
        await asyncio.sleep(0)
        live.stop()
        assert await waiting is None
    assert await anext(live.listen(), None) is None


class Client:
    """One that reads, until it does not."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.is_closed = False
        self.reads = asyncio.Event()
        self.reads.set()
        self.gone = asyncio.Event()

    async def send(self, message: Message) -> None:
        await self.reads.wait()
        if message["type"] == "http.response.body":
            self.bodies.append(message["body"])
            self.is_closed = not message["more_body"]

    async def receive(self) -> Message:
        await self.gone.wait()
        return {"type": "http.disconnect"}


@asynccontextmanager
async def listening(live: Live, check: Callable[[], None] = lambda: None) -> AsyncIterator[tuple[Client, asyncio.Task]]:
    client = Client()
    task = asyncio.create_task(LiveEvents(live, check)({}, client.receive, client.send))
    await until(lambda: client.bodies)
    yield client, task
    async with asyncio.timeout(5):
        await task
    assert live._task is None, "nobody listens"


async def test_a_client_that_goes_away_ends_its_stream() -> None:
    async with listening(Live(Counter(), tick_seconds=3600)) as (client, _):
        client.gone.set()


async def test_a_client_that_reads_nothing_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin_overview, "SEND_SECONDS", 0.02)
    async with listening(Live(Counter(), tick_seconds=TICK)) as (client, task):
        client.reads.clear()
        await asyncio.wait([task], timeout=5)
        assert task.done()
        assert not client.is_closed


async def test_the_stream_ends_when_its_session_does() -> None:
    is_over = False

    def check() -> None:
        if is_over:
            raise AuthenticationError("the session has ended")

    async with listening(Live(Counter(), tick_seconds=TICK), check) as (client, _):
        assert not client.is_closed
        is_over = True
        await until(lambda: client.is_closed)
        assert client.bodies[-1] == b""


async def test_events_carry_what_overview_says_and_the_end_of_the_gateway_ends_them(
    backend: FakeBackend, model_files: ModelFiles
) -> None:
    app = create_app(Settings(admin_key="open-sesame"), backend, model_files)  # type: ignore[arg-type]
    async with running(app) as port, httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}/admin/v1") as client:
        assert (await client.get("/live")).status_code == 401
        async with client.stream("GET", "/live", headers=ADMIN) as answer:
            assert answer.headers["content-type"].startswith("text/event-stream")
            lines = answer.aiter_lines()
            assert await anext(lines) == "event: overview"
            event = orjson.loads((await anext(lines)).removeprefix("data: "))
            seen = (await client.get("/overview", headers=ADMIN)).json()
            assert event | {"at": None} == seen | {"at": None}
            app.state.end_live()
            async with asyncio.timeout(1):
                assert [line async for line in lines] == [""]
