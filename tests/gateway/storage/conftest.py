"""Every test with a `url` or a `database` runs on SQLite and on PostgreSQL."""

from __future__ import annotations

import itertools
import os
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from gateway.storage import migrate
from gateway.storage.database import Database
from tests.support.postgres import Cluster, running_cluster


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
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
    if request.param == "postgresql":
        return new_postgres()
    (tmp_path / "test.db").touch()
    return f"sqlite+aiosqlite:///{tmp_path}/test.db"


@pytest.fixture
async def database(url: str) -> AsyncIterator[Database]:
    """A database with our tables."""
    database = Database(url)
    await migrate.upgrade(database)
    yield database
    await database.close()
