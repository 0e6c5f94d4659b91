"""What operators chose as limits of tenants and keys, in the database."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from sqlalchemy import Table, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.limits.limits import LimitBook, LimitChoice
from gateway.storage.audit import Author, write_audit
from gateway.storage.database import Database
from gateway.storage.keys import ApiKey, find_key
from gateway.storage.tables import KEYS, STATE, TENANTS
from gateway.storage.tenants import Tenant, find_tenant


class LimitSettings:
    """Writes choices, and keeps the limits of a running gateway as the database is."""

    def __init__(self, database: Database, book: LimitBook) -> None:
        self._database = database
        self._book = book
        self._counter = -1
        self._refreshing = asyncio.Lock()

    async def change_tenant(self, author: Author, name_or_id: str, choice: LimitChoice | None) -> Tenant:
        """Change a tenant's limits, those that a choice names; None takes all back. In force after the next refresh.

        Raises: NotFoundError: no such tenant; StorageUnavailableError: nothing was written.
        """
        async with self._database.write() as connection:
            tenant = await find_tenant(connection, name_or_id, to_change=True)
            await self._change(connection, author, TENANTS, tenant, choice)
            return await find_tenant(connection, tenant.id)

    async def change_key(self, author: Author, key_id: str, choice: LimitChoice | None) -> ApiKey:
        """Change a key's limits, likewise.

        Raises: NotFoundError: no such key; StorageUnavailableError: nothing was written.
        """
        async with self._database.write() as connection:
            key = await find_key(connection, key_id, to_change=True)
            await self._change(connection, author, KEYS, key, choice)
            return await find_key(connection, key.id)

    async def refresh(self) -> None:
        """Read the limits again if anything changed.

        Raises: StorageUnavailableError: the database does not answer; the limits stay as they were.
        """
        async with self._refreshing, self._database.read() as connection:
            # The counter first: a change between the reads is then read twice, not missed.
            counter = (await connection.execute(select(STATE.c.change_counter))).scalar_one()
            if counter == self._counter:
                return
            self._book.replace(await _choices(connection, TENANTS), await _choices(connection, KEYS))
            self._counter = counter

    async def _change(
        self, connection: AsyncConnection, author: Author, table: Table, of: Tenant | ApiKey, choice: LimitChoice | None
    ) -> None:
        limits = None if choice is None else {**(of.limits or {}), **choice} or None
        await connection.execute(update(table).where(table.c.id == of.id).values(limits=limits))
        action = "tenant.limit" if table is TENANTS else "key.limit"
        await write_audit(connection, author, action, of.id, {"limits": limits})
        await self._database.announce_change(connection)


async def _choices(connection: AsyncConnection, table: Table) -> Mapping[str, LimitChoice]:
    rows = (await connection.execute(select(table.c.id, table.c.limits))).all()
    return {row.id: row.limits for row in rows if row.limits}
