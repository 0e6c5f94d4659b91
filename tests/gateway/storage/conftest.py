"""Every test with a `url` or a `database` runs on SQLite and on PostgreSQL."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.app import create_app
from gateway.model_files import ModelFiles
from gateway.settings import Settings
from gateway.storage import migrate
from gateway.storage.database import Database
from gateway.storage.store import Store
from tests.gateway.support.fake_backend import FakeBackend
from tests.gateway.support.stored_gateway import ADMIN, PEPPER, Gateway, OpenGateway
from tests.support.postgres import Cluster, running_cluster


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    with running_cluster() as cluster:
        yield cluster


@pytest.fixture
def own_cluster() -> Iterator[Cluster]:
    """For a test that stops it."""
    with running_cluster() as cluster:
        yield cluster


_numbers = itertools.count()


@pytest.fixture
def new_postgres(request: pytest.FixtureRequest) -> Callable[[], str]:
    def make() -> str:
        cluster: Cluster = request.getfixturevalue("cluster")
        return cluster.new_database(f"test_{os.getpid()}_{next(_numbers)}")

    return make


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path, new_postgres: Callable[[], str]) -> str:
    """An empty database."""
    if request.param == "own-postgresql":
        own: Cluster = request.getfixturevalue("own_cluster")
        return own.new_database("test")
    if request.param == "postgresql":
        return new_postgres()
    (tmp_path / "test.db").touch()
    return f"sqlite+aiosqlite:///{tmp_path}/test.db"


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A file with our tables: copying it is faster than making them."""
    file = tmp_path_factory.mktemp("template") / "template.db"
    file.touch()

    async def make() -> None:
        database = Database(f"sqlite+aiosqlite:///{file}")
        await migrate.upgrade(database)
        await database.close()

    asyncio.run(make())
    return file.read_bytes()


@pytest.fixture
async def database(url: str, sqlite_template: bytes) -> AsyncIterator[Database]:
    """A database with our tables."""
    database = Database(url)
    if database.is_sqlite:
        Path(database.place).write_bytes(sqlite_template)
    else:
        await migrate.upgrade(database)
    yield database
    await database.close()


@pytest.fixture
def open_gateway(database: Database, model_files: ModelFiles, backend: FakeBackend) -> OpenGateway:
    @contextlib.asynccontextmanager
    async def open_one(poll_seconds: float = 0.05, **options: Any) -> AsyncIterator[Gateway]:
        url = database.url.render_as_string(hide_password=False)
        settings = Settings(admin_key="open-sesame", **options)  # type: ignore[arg-type]
        store = Store(
            Database(url, transaction_seconds=5),
            PEPPER,
            poll_seconds=poll_seconds,
            keeps_content=settings.store_content,
        )
        own_backend = FakeBackend(reply=backend.reply)  # each is stopped with its gateway
        app = create_app(settings, own_backend, model_files, store=store)
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=transport, base_url="http://gateway/admin/v1", headers=ADMIN) as admin,
        ):
            yield Gateway(store, admin, own_backend)

    return open_one


@pytest.fixture
async def gateway(open_gateway: OpenGateway) -> AsyncIterator[Gateway]:
    async with open_gateway() as gateway:
        yield gateway
