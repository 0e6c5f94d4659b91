"""Which revision a database is at, and how it gets to ours. Alembic does the work inside one transaction of ours."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, text

from gateway.storage.database import Database
from gateway.storage.tables import METADATA

_MIGRATION_LOCK = 0x707265666978  # any number that nobody else takes


class MigrationError(Exception):
    """The database is not in a state that this version can use; says what to do."""


@dataclass(frozen=True, slots=True)
class Revision:
    """Where a database stands."""

    current: str | None
    """None: it is empty."""
    head: str
    is_known: bool
    """False: a newer version of prefixgate made it."""

    @property
    def is_head(self) -> bool:
        """Whether nothing is left to do."""
        return self.current == self.head


async def revision_of(database: Database) -> Revision:
    """Read the revision.

    Raises: StorageUnavailableError: the database does not answer.
    """
    async with database.read() as connection:
        current = await connection.run_sync(lambda c: MigrationContext.configure(c).get_current_revision())
    scripts = ScriptDirectory.from_config(_config())
    known = {script.revision for script in scripts.walk_revisions()}
    return Revision(current, str(scripts.get_current_head()), current is None or current in known)


async def upgrade(database: Database, revision: str = "head") -> None:
    """Bring the tables to a revision: all steps or none. Data stays.

    Raises: StorageUnavailableError: the database does not answer; MigrationError: it is newer than this version.
    """
    found = await revision_of(database)
    if not found.is_known:
        raise MigrationError(_newer(database, found))
    await _run(database, lambda config: command.upgrade(config, revision))


async def downgrade(database: Database, revision: str) -> None:
    """Take steps back. Whatever they had added is lost."""
    await _run(database, lambda config: command.downgrade(config, revision))


async def differences(database: Database) -> list[str]:
    """Compare the database's tables with those that this version expects; empty where they are the same."""

    def compare(connection: Connection) -> list[str]:
        options = {"compare_server_default": True}
        return [
            str(difference)
            for difference in compare_metadata(MigrationContext.configure(connection, opts=options), METADATA)
        ]

    async with database.read() as connection:
        return await connection.run_sync(compare)


async def prepare(database: Database) -> None:
    """Make sure that the tables are ours: SQLite is upgraded here and now, PostgreSQL only by command.

    For PostgreSQL is shared: other gateways of an older version may still run on it.

    Raises: MigrationError: it must be upgraded, or is newer; StorageUnavailableError: it does not answer.
    """
    found = await revision_of(database)
    if found.is_head:
        return
    if not found.is_known:
        raise MigrationError(_newer(database, found))
    if not database.is_sqlite:
        raise MigrationError(
            f"the database {database.place} is at revision {found.current or 'none (it is empty)'}, wanted {found.head}; "
            "run `prefixgate db upgrade` with the same --db, then start again"
        )
    await upgrade(database)


def _newer(database: Database, found: Revision) -> str:
    return (
        f"the database {database.place} is at revision {found.current}, which this version does not know "
        f"(its own is {found.head}); a newer prefixgate made it: run that one, or name another --db"
    )


async def _run(database: Database, step: Callable[[Config], None]) -> None:
    def run(connection: Connection) -> None:
        if not database.is_sqlite:  # SQLite's writers are alone anyway
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _MIGRATION_LOCK})
        config = _config()
        config.attributes["connection"] = connection
        step(config)

    async with database.write() as connection:
        await connection.run_sync(run)


def _config() -> Config:
    """Find the scripts beside this package, in a checkout as in an installed wheel."""
    spec = find_spec("migrations")
    if spec is None or spec.origin is None:
        raise MigrationError("the package `migrations` is missing from this installation")
    config = Config()
    config.set_main_option("script_location", str(Path(spec.origin).parent).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return config
