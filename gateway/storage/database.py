"""One database: how connections are opened, how a transaction begins, and what a failure is called.

SQLite: WAL, so that readers never wait; every writer begins IMMEDIATE, for a reader that turns writer is refused at once
under WAL, whatever the busy timeout says; and writers of this process queue up here rather than poll for the file's lock.
Knows no table but the change counter.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from typing import Any
from urllib.parse import quote

from sqlalchemy import URL, Connection, NullPool, event, make_url, select, text, update
from sqlalchemy.exc import DatabaseError, DBAPIError, InterfaceError, InternalError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from gateway.errors import StorageUnavailableError
from gateway.storage.tables import STATE

CHANNEL = "prefixgate_changes"
"""PostgreSQL's LISTEN and NOTIFY."""
_CONNECT_SECONDS = 5
_SQLITE_BUSY_SECONDS = 5
_TRANSACTION_SECONDS = 20.0
_WRITES = "prefixgate_writes"


class Database:
    """Transactions on one database. Opening it connects to nothing yet."""

    def __init__(self, url: str, *, transaction_seconds: float = _TRANSACTION_SECONDS) -> None:
        self.url = make_url(url)
        self.is_sqlite = self.url.get_backend_name() == "sqlite"
        self._transaction_seconds = transaction_seconds
        self._engine = _sqlite_engine(self.url) if self.is_sqlite else _postgres_engine(self.url)
        # PostgreSQL's own locks order writers, and they do not wait for each other's rows.
        self._writing: AbstractAsyncContextManager[Any] = asyncio.Lock() if self.is_sqlite else nullcontext()

    @property
    def place(self) -> str:
        """Where it is, for people; never with a password."""
        return str(self.url.database) if self.is_sqlite else self.url.render_as_string(hide_password=True)

    @asynccontextmanager
    async def read(self) -> AsyncIterator[AsyncConnection]:
        """Open a transaction that only reads.

        Raises: StorageUnavailableError: the database does not answer, or not in time.
        """
        with _named_failure():
            async with asyncio.timeout(self._transaction_seconds), self._engine.connect() as connection:
                yield connection

    @asynccontextmanager
    async def write(self) -> AsyncIterator[AsyncConnection]:
        """Open a transaction that is committed at the end, or rolled back by an exception.

        Raises: StorageUnavailableError: nothing was written, or the connection broke while it was committed.
        """
        with _named_failure():
            async with asyncio.timeout(self._transaction_seconds), self._writing, self._engine.connect() as connection:
                await connection.execution_options(**{_WRITES: True})
                async with connection.begin():
                    yield connection

    async def announce_change(self, connection: AsyncConnection) -> None:
        """Tell other gateways, once this transaction is committed, that keys, prompts or rules are not what they were."""
        await connection.execute(update(STATE).values(change_counter=STATE.c.change_counter + 1))
        if not self.is_sqlite:
            await connection.execute(text(f"NOTIFY {CHANNEL}"))

    async def change_counter(self) -> int:
        """Read the number of changes so far.

        Raises: StorageUnavailableError: the database does not answer.
        """
        async with self.read() as connection:
            return int((await connection.execute(select(STATE.c.change_counter))).scalar_one())

    async def close(self) -> None:
        """Close all connections."""
        await self._engine.dispose()


class _named_failure:  # noqa: N801 -- used like a function
    """Turns what drivers raise where a database is gone into one error; mistakes in statements stay what they are."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, TimeoutError | PoolTimeoutError):
            raise StorageUnavailableError("the database did not answer in time") from error
        is_broken = isinstance(
            error, OperationalError | InterfaceError | InternalError | OSError | sqlite3.DatabaseError
        )
        is_cut = isinstance(error, DBAPIError) and error.connection_invalidated
        if is_broken or is_cut or type(error) is DatabaseError:  # the last: no database in the file
            raise StorageUnavailableError("the database does not answer; the log has the details") from error


def _sqlite_engine(url: URL) -> AsyncEngine:
    """Open the file anew for each transaction, and never make it: a kept connection would write into a deleted one."""
    existing = URL.create(
        url.drivername, database=f"file:{quote(str(url.database))}", query={"mode": "rw", "uri": "true"}
    )
    engine = create_async_engine(
        existing, hide_parameters=True, poolclass=NullPool, connect_args={"timeout": _SQLITE_BUSY_SECONDS}
    )

    @event.listens_for(engine.sync_engine, "connect")
    def _configure(connection: Any, _: object) -> None:
        connection.isolation_level = None  # the driver would begin transactions by its own rules
        cursor = connection.cursor()
        cursor.execute("PRAGMA journal_mode=WAL")
        cursor.execute("PRAGMA synchronous=FULL")  # a key that was shown is on the disk, also if the power fails
        cursor.execute("PRAGMA foreign_keys=ON")
        cursor.close()

    @event.listens_for(engine.sync_engine, "begin")
    def _begin(connection: Connection) -> None:
        writes = connection.get_execution_options().get(_WRITES, False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    return engine


def _postgres_engine(url: URL) -> AsyncEngine:
    return create_async_engine(
        url,
        hide_parameters=True,
        pool_pre_ping=True,  # a restarted server costs no request an error
        pool_timeout=_CONNECT_SECONDS,
        connect_args={"connect_timeout": _CONNECT_SECONDS},
    )
