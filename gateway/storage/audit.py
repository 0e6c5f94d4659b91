"""The audit log: who changed what, and when. Its rows are written in the transaction of the change itself."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Row, insert, select
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.storage.database import Database
from gateway.storage.rows import Page, PageSpan, page_by
from gateway.storage.tables import AUDIT


@dataclass(frozen=True, slots=True)
class Author:
    """On whose behalf something is changed."""

    name: str
    """Such as `admin@127.0.0.1`."""
    request_id: str | None = None


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """One change."""

    seq: int
    created_at: float
    actor: str
    action: str
    """Such as `key.create`."""
    target: str
    """The id of what was changed."""
    request_id: str | None
    details: Mapping[str, Any] | None


async def write_audit(
    connection: AsyncConnection, author: Author, action: str, target: str, details: Mapping[str, Any] | None = None
) -> None:
    """Note a change, inside its transaction. Details hold no secret and no prompt."""
    await connection.execute(
        insert(AUDIT).values(
            created_at=time.time(),
            actor=author.name,
            action=action,
            target=target,
            request_id=author.request_id,
            details=None if details is None else dict(details),
        )
    )


@asynccontextmanager
async def audited(
    database: Database, author: Author, action: str, target: str, details: Mapping[str, Any]
) -> AsyncIterator[None]:
    """Note a change that is made elsewhere than in the database, unless making it fails.

    Raises: StorageUnavailableError: nothing was noted; before the change, unless the database went away meanwhile.
    """
    async with database.write() as connection:
        await write_audit(connection, author, action, target, details)
        yield


async def list_audit(database: Database, span: PageSpan) -> Page[AuditEntry]:
    """List changes, the newest first.

    Raises: StorageUnavailableError: the database does not answer.
    """
    async with database.read() as connection:
        return await page_by(connection, select(AUDIT), span, AUDIT.c.seq, _entry, is_newest_first=True)


def _entry(row: Row[Any]) -> AuditEntry:
    return AuditEntry(**row._mapping)
