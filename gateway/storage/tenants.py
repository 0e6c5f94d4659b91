"""Tenants: whose prompts, cache and history are kept apart."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Row, insert, or_, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.errors import ConflictError, NotFoundError, shown
from gateway.storage.audit import Author, write_audit
from gateway.storage.database import Database
from gateway.storage.rows import Page, PageSpan, new_id, page_by
from gateway.storage.tables import TENANTS


@dataclass(frozen=True, slots=True)
class Tenant:
    """One tenant."""

    id: str
    """In the namespace of its cache, so it never changes."""
    name: str
    limits: Mapping[str, int | None] | None
    """What was chosen for it, by name; null: no limit. What was not chosen is the gateway's default."""
    created_at: float


class Tenants:
    """The tenants of one database."""

    def __init__(self, database: Database, clock: Callable[[], float]) -> None:
        self._database = database
        self._clock = clock

    async def create(self, author: Author, name: str) -> Tenant:
        """Add a tenant.

        Raises: ConflictError: the name is taken; StorageUnavailableError: nothing was written.
        """
        now = self._clock()
        tenant = Tenant(new_id("tnt", now), name, None, now)
        try:
            async with self._database.write() as connection:
                row = {"id": tenant.id, "name": name, "created_at": now}
                await connection.execute(insert(TENANTS).values(row))
                await write_audit(connection, author, "tenant.create", tenant.id, {"name": name})
        except IntegrityError as error:
            raise ConflictError(
                f"name: got {shown(name)}, wanted a name that no tenant has yet", param="name"
            ) from error
        return tenant

    async def list(self, span: PageSpan) -> Page[Tenant]:
        """List tenants, the oldest first.

        Raises: StorageUnavailableError: the database does not answer.
        """
        async with self._database.read() as connection:
            return await page_by(connection, select(TENANTS), span, TENANTS.c.id, _tenant)

    async def find(self, name_or_id: str) -> Tenant:
        """Look a tenant up.

        Raises: NotFoundError: no such tenant; StorageUnavailableError: the database does not answer.
        """
        async with self._database.read() as connection:
            return await find_tenant(connection, name_or_id)


async def find_tenant(
    connection: AsyncConnection, name_or_id: str, *, field: str = "tenant", to_change: bool = False
) -> Tenant:
    """Look a tenant up inside a transaction, which may be about to change it; an id wins over a name that looks like it.

    Raises: NotFoundError: no such tenant; it names the field that asked for one.
    """
    is_meant = or_(TENANTS.c.id == name_or_id, TENANTS.c.name == name_or_id)
    query = select(TENANTS).where(is_meant)
    rows = (await connection.execute(query.with_for_update() if to_change else query)).all()
    if not rows:
        raise NotFoundError(f"{field}: got {shown(name_or_id)}, wanted the id or name of a tenant", param=field)
    return _tenant(max(rows, key=lambda row: bool(row.id == name_or_id)))


def _tenant(row: Row[Any]) -> Tenant:
    return Tenant(row.id, row.name, row.limits, row.created_at)
