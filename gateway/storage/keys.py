"""API keys as the operator sees them. The key itself is shown once, when it is made; the database has its HMAC."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Row, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.errors import ConflictError, NotFoundError, shown
from gateway.storage.audit import Author, write_audit
from gateway.storage.database import Database
from gateway.storage.pepper import Pepper
from gateway.storage.rows import Page, PageSpan, new_id, page_by
from gateway.storage.tables import KEYS
from gateway.storage.tenants import find_tenant

KEY_PREFIX = "pg-"
"""So that scanners for leaked secrets can find them."""
_HINT_CHARS = 4


@dataclass(frozen=True, slots=True)
class ApiKey:
    """All that is known of a key but the key."""

    id: str
    tenant_id: str
    name: str | None
    hint: str
    """Its last characters."""
    models: Sequence[str] | None
    """The only models that it may use; None: all."""
    limits: Mapping[str, int | None] | None
    """What it may ask for within what its tenant may, by name."""
    replaces: str | None
    """The key that was rotated out for it."""
    created_at: float
    expires_at: float | None
    revoked_at: float | None

    def state(self, now: float) -> str:
        """One of `active`, `expired` and `revoked`."""
        if self.revoked_at is not None:
            return "revoked"
        return "expired" if self.expires_at is not None and self.expires_at <= now else "active"


@dataclass(frozen=True, slots=True)
class NewKey:
    """A key at the one moment when it can be shown."""

    record: ApiKey
    secret: str


class ApiKeys:
    """The keys of one database. A change is seen by every gateway that watches it."""

    def __init__(self, database: Database, pepper: Pepper, clock: Callable[[], float]) -> None:
        self._database = database
        self._pepper = pepper
        self._clock = clock

    async def create(
        self,
        author: Author,
        tenant: str,
        *,
        name: str | None = None,
        expires_at: float | None = None,
        models: Sequence[str] | None = None,
    ) -> NewKey:
        """Make a key.

        Args:
            author: for the audit log.
            tenant: id or name.
            name: for people.
            expires_at: from then on it is refused; seconds since 1970.
            models: the only ones that it may use; None: all.

        Raises: NotFoundError: no such tenant; StorageUnavailableError: nothing was written.
        """
        async with self._database.write() as connection:
            tenant_id = (await find_tenant(connection, tenant)).id
            record = ApiKey("", tenant_id, name, "", models, None, None, 0.0, expires_at, None)
            return await self._insert(connection, author, "key.create", record)

    async def list(self, span: PageSpan, *, tenant: str | None = None) -> Page[ApiKey]:
        """List keys, the oldest first.

        Raises: NotFoundError: no such tenant; StorageUnavailableError: the database does not answer.
        """
        async with self._database.read() as connection:
            query = select(KEYS)
            if tenant is not None:
                query = query.where(KEYS.c.tenant_id == (await find_tenant(connection, tenant)).id)
            return await page_by(connection, query, span, KEYS.c.id, _key)

    async def find(self, key_id: str) -> ApiKey:
        """Look a key up.

        Raises: NotFoundError: no such key; StorageUnavailableError: the database does not answer.
        """
        async with self._database.read() as connection:
            return await find_key(connection, key_id)

    async def rotate(self, author: Author, key_id: str, *, grace_seconds: float) -> NewKey:
        """Make a key like this one, which works for some seconds more.

        Raises: NotFoundError: no such key; ConflictError: it no longer works; StorageUnavailableError: nothing was written.
        """
        async with self._database.write() as connection:
            old = await find_key(connection, key_id, to_change=True)
            now = self._clock()
            if old.state(now) != "active":
                raise ConflictError(f"key {key_id} is {old.state(now)}, wanted an active one: create a new key instead")
            ends_at = min(now + grace_seconds, old.expires_at or float("inf"))
            ending = {"expires_at": ends_at} if grace_seconds else {"revoked_at": now}
            await connection.execute(update(KEYS).where(KEYS.c.id == key_id).values(ending))
            record = ApiKey("", old.tenant_id, old.name, "", old.models, old.limits, old.id, 0.0, old.expires_at, None)
            return await self._insert(connection, author, "key.rotate", record)

    async def revoke(self, author: Author, key_id: str) -> ApiKey:
        """Refuse a key from now on; doing it twice changes nothing.

        Raises: NotFoundError: no such key; StorageUnavailableError: nothing was written.
        """
        async with self._database.write() as connection:
            old = await find_key(connection, key_id, to_change=True)
            if old.revoked_at is not None:
                return old
            return await self._update(connection, author, "key.revoke", key_id, {"revoked_at": self._clock()})

    async def expire(self, author: Author, key_id: str, expires_at: float | None) -> ApiKey:
        """Set when a key ends; None: never.

        Raises: NotFoundError: no such key; ConflictError: it is revoked; StorageUnavailableError: nothing was written.
        """
        async with self._database.write() as connection:
            old = await find_key(connection, key_id, to_change=True)
            if old.revoked_at is not None:
                raise ConflictError(f"key {key_id} is revoked, and that is final: create a new key instead")
            return await self._update(connection, author, "key.expire", key_id, {"expires_at": expires_at})

    async def _insert(self, connection: AsyncConnection, author: Author, action: str, record: ApiKey) -> NewKey:
        now = self._clock()
        secret = KEY_PREFIX + secrets.token_urlsafe(32)
        row: dict[str, Any] = {
            "id": new_id("key", now),
            "tenant_id": record.tenant_id,
            "name": record.name,
            "hint": secret[-_HINT_CHARS:],
            "models": None if record.models is None else list(record.models),
            "limits": None if record.limits is None else dict(record.limits),
            "replaces": record.replaces,
            "created_at": now,
            "expires_at": record.expires_at,
        }
        await connection.execute(insert(KEYS).values(row | {"digest": self._pepper.digest(secret)}))
        await write_audit(
            connection, author, action, str(row["id"]), {k: row[k] for k in _AUDITED if row[k] is not None}
        )
        await self._database.announce_change(connection)
        return NewKey(ApiKey(**row, revoked_at=None), secret)

    async def _update(
        self, connection: AsyncConnection, author: Author, action: str, key_id: str, values: dict[str, float | None]
    ) -> ApiKey:
        await connection.execute(update(KEYS).where(KEYS.c.id == key_id).values(values))
        await write_audit(connection, author, action, key_id, values)
        await self._database.announce_change(connection)
        return await find_key(connection, key_id)


_AUDITED = ("tenant_id", "name", "models", "limits", "replaces", "expires_at")


async def find_key(connection: AsyncConnection, key_id: str, *, to_change: bool = False) -> ApiKey:
    """Look a key up inside a transaction, which may be about to change it.

    Raises: NotFoundError: no such key.
    """
    query = select(KEYS).where(KEYS.c.id == key_id)
    row = (await connection.execute(query.with_for_update() if to_change else query)).one_or_none()
    if row is None:
        raise NotFoundError(f"key: got {shown(key_id)}, wanted the id of a key", param="key")
    return _key(row)


def _key(row: Row[Any]) -> ApiKey:
    return ApiKey(**{name: value for name, value in row._mapping.items() if name != "digest"})
