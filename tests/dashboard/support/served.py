"""A whole gateway on the chain engine, served by uvicorn on a port of this machine: a real prefix cache, no model.

It runs in a thread with an event loop of its own, so that tests and browser talk to it as anybody does.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import uvicorn

from engine.config import CacheConfig, EngineConfig, SchedulerConfig
from gateway.app import create_app
from gateway.backends.local import LocalBackend
from gateway.protocol import HttpProtocol
from gateway.settings import ENVIRONMENT_PREFIX, Settings
from gateway.storage.store import open_store, prepare_database
from tests.gateway.support.tiny_model import TOOL_TEMPLATE, write_model
from tests.support.chain_worker import COMMAND

ADMIN_KEY = "admin-key-for-tests"
BLOCK_SIZE = 8
NUM_BLOCKS = 600
"""Few enough that the traffic of `traffic.py` evicts some."""
START_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class ServedGateway:
    """Where it listens, and how an operator talks to it."""

    url: str

    def admin(self) -> httpx.AsyncClient:
        """A client of the admin API."""
        headers = {"authorization": f"Bearer {ADMIN_KEY}"}
        return httpx.AsyncClient(base_url=f"{self.url}/admin/v1", headers=headers, timeout=60)

    async def get(self, path: str, **query: Any) -> Any:
        """What the admin API answers on a path below `/admin/v1`."""
        async with self.admin() as client:
            answer = await client.get(path, params=query)
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def metrics(self) -> str:
        """A scrape."""
        async with httpx.AsyncClient(timeout=60) as client:
            return (await client.get(f"{self.url}/metrics")).text


@contextlib.contextmanager
def serving(folder: Path, **settings: Any) -> Iterator[ServedGateway]:
    """Serve until the end of the block; what is stored lies in the folder, for the next one to find.

    Args:
        folder: of the model's files and the database.
        settings: in place of those that show most: everything sampled and stored.
    """
    server = _Server(folder, settings)
    thread = threading.Thread(target=server.run, name="gateway", daemon=True)
    thread.start()
    try:
        assert server.settled.wait(START_SECONDS), "the gateway does not come up"
        if server.failure is not None:
            raise RuntimeError("the gateway failed to start") from server.failure
        yield ServedGateway(server.url)
    finally:
        server.stop()
        thread.join(START_SECONDS)
        assert not thread.is_alive(), "the gateway does not end"


class _Server:
    def __init__(self, folder: Path, settings: dict[str, Any]) -> None:
        self._folder = folder
        database = f"sqlite+aiosqlite:///{folder}/gateway.db"
        options = {"db": database, "admin_key": ADMIN_KEY, "accounting_sampling": 1.0, "store_content": True}
        with _clean_environment():
            self._settings = Settings(**options | settings)
        self._uvicorn: uvicorn.Server | None = None
        self.settled = threading.Event()
        self.failure: BaseException | None = None
        self.url = ""

    def run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:  # told in the thread that waits
            self.failure = error
        finally:
            self.settled.set()

    def stop(self) -> None:
        if self._uvicorn is not None:
            self._uvicorn.should_exit = True

    async def _serve(self) -> None:
        await prepare_database(self._settings)
        files = write_model(self._folder, template=TOOL_TEMPLATE)
        backend = LocalBackend(_engine_config(), command=COMMAND)
        app = create_app(self._settings, backend, files, store=open_store(self._settings))
        config = uvicorn.Config(
            app,
            host="127.0.0.1",
            port=0,
            http=HttpProtocol,
            ws="none",
            lifespan="on",
            log_config=None,
            timeout_graceful_shutdown=1,  # an open dashboard listens for ever
        )
        self._uvicorn = uvicorn.Server(config)
        async with _started(self._uvicorn) as port:
            state = await backend.wait_settled()
            if state != "ready":
                raise RuntimeError(f"the engine {state}")
            self.url = f"http://127.0.0.1:{port}"
            self.settled.set()


@contextlib.asynccontextmanager
async def _started(server: uvicorn.Server) -> AsyncIterator[int]:
    """Listen, then serve until it is told to stop."""
    task = asyncio.create_task(server.serve())
    while not server.started and not task.done():
        await asyncio.sleep(0.01)
    try:
        if task.done():
            raise RuntimeError("uvicorn did not start")
        yield server.servers[0].sockets[0].getsockname()[1]
    except BaseException:
        server.should_exit = True
        raise
    finally:
        await task


def _engine_config() -> EngineConfig:
    """Small steps, so that what is computed takes longer than what is reused."""
    return EngineConfig(
        model_path="chain",
        cache=CacheConfig(block_size=BLOCK_SIZE, num_blocks=NUM_BLOCKS, growth_reserve=0),
        scheduler=SchedulerConfig(max_num_seqs=8, max_num_batched_tokens=64, prefill_chunk=16),
    )


@contextlib.contextmanager
def _clean_environment() -> Iterator[None]:
    """Without the options that whoever runs the tests has set."""
    found = {name: os.environ.pop(name) for name in list(os.environ) if name.startswith(ENVIRONMENT_PREFIX)}
    try:
        yield
    finally:
        os.environ.update(found)
