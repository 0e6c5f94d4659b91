"""API keys in memory, where requests look them up, and what keeps them as the database has them.

When the database is gone the keys of the last look stay good: serving goes on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass

from sqlalchemy import URL, select

from gateway.auth import Identity
from gateway.errors import StorageUnavailableError
from gateway.storage.database import CHANNEL, Database
from gateway.storage.ending import end_tasks
from gateway.storage.pepper import Pepper
from gateway.storage.tables import KEYS, STATE

logger = logging.getLogger(__name__)

POLL_SECONDS = 1.0
"""How late a gateway may see what another one changed; PostgreSQL tells it at once."""


@dataclass(frozen=True, slots=True)
class _RingKey:
    identity: Identity
    expires_at: float | None


class KeyRing:
    """The `KeyStore` of a gateway with a database."""

    def __init__(self, database: Database, pepper: Pepper, clock: Callable[[], float]) -> None:
        self._database = database
        self._pepper = pepper
        self._clock = clock
        self._counter = -1
        self._has_keys = False
        self._keys: dict[str, _RingKey] = {}

    def has_keys(self) -> bool:
        """Whether a key was ever made: revoking the last one must not open the doors."""
        return self._has_keys

    def identify(self, key: str) -> Identity | None:
        """Find whose key it is.

        The dictionary compares digests, not keys: how long that takes tells nothing without the pepper.
        """
        found = self._keys.get(self._pepper.digest(key))
        if found is None or (found.expires_at is not None and found.expires_at <= self._clock()):
            return None
        return found.identity

    async def refresh(self) -> None:
        """Read the keys again if anything changed.

        Raises: StorageUnavailableError: the database does not answer; the keys stay as they were.
        """
        async with self._database.read() as connection:
            # The counter first: a change between the two reads is then read twice, not missed.
            counter = (await connection.execute(select(STATE.c.change_counter))).scalar_one()
            if counter == self._counter:
                return
            rows = (await connection.execute(select(KEYS))).all()
        self._keys = {
            row.digest: _RingKey(
                Identity(row.tenant_id, row.id, None if row.models is None else frozenset(row.models)), row.expires_at
            )
            for row in rows
            if row.revoked_at is None
        }
        self._has_keys = bool(rows)
        self._counter = counter


class ChangeWatcher:
    """Refreshes something when another gateway changed the database: told by PostgreSQL, and by asking it again and again.

    Attributes:
        is_up: whether the database answered last.
    """

    def __init__(
        self, database: Database, refresh: Callable[[], Awaitable[None]], *, poll_seconds: float = POLL_SECONDS
    ) -> None:
        self.is_up = True
        self._database = database
        self._refresh = refresh
        self._poll_seconds = poll_seconds
        self._woken = asyncio.Event()
        self._is_stopping = False
        self._watching: asyncio.Task[None] | None = None
        self._listening: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to watch."""
        self._watching = asyncio.create_task(self._watch())
        if not self._database.is_sqlite:
            self._listening = asyncio.create_task(self._listen())

    async def stop(self) -> None:
        """Stop watching."""
        self._is_stopping = True
        self._woken.set()
        if self._listening is not None:
            self._listening.cancel()
        await end_tasks([task for task in (self._watching, self._listening) if task is not None])

    async def _watch(self) -> None:
        while not self._is_stopping:
            try:
                await self._refresh()
                if not self.is_up:
                    logger.warning("the database answers again")
                self.is_up = True
            except StorageUnavailableError as error:
                if self.is_up:
                    logger.warning("%s; serving goes on with the keys of before: %s", error, error.cause)
                self.is_up = False
            except Exception:  # a watcher that ended would let revoked keys live on
                logger.exception("looking for changes failed")
            with suppress(TimeoutError):
                async with asyncio.timeout(self._poll_seconds):  # wait_for loses a cancellation that meets the wake-up
                    await self._woken.wait()
            self._woken.clear()

    async def _listen(self) -> None:
        import psycopg  # only with PostgreSQL, and then the engine has imported it already

        while True:
            try:
                await _notifications(self._database.url, self._woken.set)
            except psycopg.Error as error:
                logger.debug("not listening: %s", error)  # the watcher asks meanwhile, and says what is wrong
            await asyncio.sleep(self._poll_seconds)


async def _notifications(url: URL, wake: Callable[[], None]) -> None:
    """Listen until the connection breaks."""
    import psycopg

    address = url.set(drivername="postgresql").render_as_string(hide_password=False)
    async with await psycopg.AsyncConnection.connect(address, autocommit=True) as connection:
        await connection.execute(f"LISTEN {CHANNEL}")
        wake()  # for what was said while nobody listened
        async for _ in connection.notifies():
            wake()
