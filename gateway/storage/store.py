"""Everything a gateway keeps in its database, started and stopped together."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

from gateway.settings import Settings
from gateway.storage import migrate
from gateway.storage.database import Database
from gateway.storage.key_ring import POLL_SECONDS, ChangeWatcher, KeyRing
from gateway.storage.keys import ApiKeys
from gateway.storage.opening import open_database
from gateway.storage.pepper import Pepper, check_pepper, load_pepper
from gateway.storage.request_log import RequestLog
from gateway.storage.retention import DEFAULT_RETENTION, Retention
from gateway.storage.tenants import Tenants


class Store:
    """The stores of one database.

    Attributes:
        database: for reads that need no store of their own.
        tenants: whose cache is kept apart.
        keys: API keys, for the operator.
        ring: API keys, for requests.
        watcher: keeps the ring as the database is.
        log: what requests came.
        minutes: what is summed by the minute.
    """

    def __init__(
        self,
        database: Database,
        pepper: Pepper,
        *,
        retention: Retention = DEFAULT_RETENTION,
        keeps_content: bool = False,
        clock: Callable[[], float] = time.time,
        poll_seconds: float = POLL_SECONDS,
    ) -> None:
        self.database = database
        self.tenants = Tenants(database, clock)
        self.keys = ApiKeys(database, pepper, clock)
        self.ring = KeyRing(database, pepper, clock)
        self._refreshes: list[Callable[[], Awaitable[None]]] = [self.ring.refresh]
        self.watcher = ChangeWatcher(database, self.refresh, poll_seconds=poll_seconds)
        self.log = RequestLog(database, retention, keeps_content=keeps_content)
        self.minutes = self.log.minutes

    def keep_fresh(self, refresh: Callable[[], Awaitable[None]]) -> None:
        """Have something read again whenever the database may have changed; called before the start."""
        self._refreshes.append(refresh)

    async def refresh(self) -> None:
        """Read what other gateways changed.

        Raises: StorageUnavailableError: the database does not answer.
        """
        for refresh in self._refreshes:
            await refresh()

    async def start(self) -> None:
        """Read the keys and prompts; only then may anybody be let in.

        Raises: StorageUnavailableError: the database does not answer.
        """
        await self.refresh()
        self.watcher.start()
        self.log.start()

    async def stop(self) -> None:
        """Close everything."""
        await self.watcher.stop()
        await self.log.stop()
        await self.database.close()


async def prepare_database(settings: Settings) -> str:
    """Before a gateway starts: tables of this version, a pepper that fits.

    Returns: where the database is, for people.

    Raises: DatabaseSetupError, MigrationError, StorageUnavailableError: a sentence for the operator.
    """
    database = open_database(settings.database_url, create=True)
    try:
        await migrate.prepare(database)
        await check_pepper(load_pepper(settings.pepper, database), database)
        return database.place
    finally:
        await database.close()


def open_store(settings: Settings) -> Store:
    """Open a prepared database.

    Raises: DatabaseSetupError: what is wrong.
    """
    database = open_database(settings.database_url, create=False)
    return Store(
        database,
        load_pepper(settings.pepper, database),
        retention=Retention(settings.request_log_rows, settings.request_log_days),
        keeps_content=settings.store_content,
    )
