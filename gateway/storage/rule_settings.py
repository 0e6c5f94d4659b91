"""How operators want the rules of the normalizer, in the database."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any

from sqlalchemy import ColumnElement, and_, delete, insert, select

from gateway.errors import NotFoundError, shown
from gateway.normalize.modes import Place, RuleModes
from gateway.normalize.registry import Choice
from gateway.normalize.rule import Mode
from gateway.storage.audit import Author, write_audit
from gateway.storage.database import Database
from gateway.storage.tables import RULE_SETTINGS, STATE


class RuleSettings:
    """Writes choices, and keeps the modes of a running gateway as the database is."""

    def __init__(self, database: Database, modes: RuleModes, clock: Callable[[], float] = time.time) -> None:
        self._database = database
        self._modes = modes
        self._clock = clock
        self._counter = -1
        self._refreshing = asyncio.Lock()

    async def set(self, author: Author, place: Place, choice: Choice) -> None:
        """Put a choice in the place of another one, or of none; in force after the next refresh.

        Raises: StorageUnavailableError: nothing was written.
        """
        row = {**place._asdict(), "mode": choice.mode, "params": dict(choice.params)}
        async with self._database.write() as connection:
            await connection.execute(delete(RULE_SETTINGS).where(_is_at(place)))
            await connection.execute(insert(RULE_SETTINGS).values(**_columns(place), **_values(choice, self._clock())))
            await write_audit(connection, author, "rule.set", place.rule, row)
            await self._database.announce_change(connection)

    async def clear(self, author: Author, place: Place) -> None:
        """Take a choice back; in force after the next refresh.

        Raises: NotFoundError: there is none; StorageUnavailableError: nothing was written.
        """
        async with self._database.write() as connection:
            done = await connection.execute(delete(RULE_SETTINGS).where(_is_at(place)))
            if not done.rowcount:
                raise NotFoundError(
                    f"rule: got {shown(place.rule)} for tenant {place.tenant} and route {place.route}, wanted one for "
                    "which a mode was set there",
                    param="rule",
                )
            await write_audit(connection, author, "rule.clear", place.rule, place._asdict())
            await self._database.announce_change(connection)

    async def refresh(self) -> None:
        """Read the choices again if anything changed.

        Raises: StorageUnavailableError: the database does not answer; the choices stay as they were.
        """
        async with self._refreshing, self._database.read() as connection:
            counter = (await connection.execute(select(STATE.c.change_counter))).scalar_one()
            if counter == self._counter:
                return
            rows = (await connection.execute(select(RULE_SETTINGS))).all()
            found = {
                Place(row.tenant_id, row.route, row.rule): Choice(Mode(row.mode), row.params or {}) for row in rows
            }
            if found != self._modes.choices:
                self._modes.replace(found)
            self._counter = counter


def _is_at(place: Place) -> ColumnElement[bool]:
    return and_(*(RULE_SETTINGS.c[name] == value for name, value in _columns(place).items()))


def _columns(place: Place) -> Mapping[str, str]:
    return {"tenant_id": place.tenant, "route": place.route, "rule": place.rule}


def _values(choice: Choice, now: float) -> Mapping[str, Any]:
    return {"mode": choice.mode.value, "params": dict(choice.params) or None, "updated_at": now}
