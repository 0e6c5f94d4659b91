"""`prefixgate db upgrade | current | check`: the tables of a database, made or inspected."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence

from gateway.errors import StorageUnavailableError
from gateway.options import add_flags, read_settings
from gateway.storage import migrate
from gateway.storage.database import Database
from gateway.storage.opening import DatabaseSetupError, open_database

ACTIONS = {
    "upgrade": "bring the tables to this version; data stays",
    "current": "print the revision that the tables are at",
    "check": "end with status 0 if the tables are those of this version, else 1",
}


def main(argv: Sequence[str]) -> int:
    """Upgrade or inspect a database."""
    parser = argparse.ArgumentParser(
        prog="prefixgate db",
        description="The tables of the gateway's database. SQLite is also upgraded whenever a gateway starts.",
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
    )
    actions = parser.add_subparsers(dest="action", required=True, metavar="|".join(ACTIONS))
    for name, meaning in ACTIONS.items():
        add_flags(actions.add_parser(name, help=meaning, allow_abbrev=False), ("db", "config"))
    given = vars(parser.parse_args(argv))
    action = given.pop("action")
    settings = read_settings(parser, {name: value for name, value in given.items() if value is not None})
    try:
        return asyncio.run(_run(action, settings.database_url))
    except (migrate.MigrationError, StorageUnavailableError, DatabaseSetupError) as error:
        cause = f" ({error.__cause__})" if error.__cause__ else ""
        print(f"prefixgate db: {error}{cause}", file=sys.stderr)
        return 1


async def _run(action: str, url: str) -> int:
    database = open_database(url, create=action == "upgrade")
    try:
        return await {"upgrade": _upgrade, "current": _current, "check": _check}[action](database)
    finally:
        await database.close()


async def _upgrade(database: Database) -> int:
    before = await migrate.revision_of(database)
    await migrate.upgrade(database)
    print(f"{database.place}: from {before.current or 'nothing'} to {before.head}")
    return 0


async def _current(database: Database) -> int:
    found = await migrate.revision_of(database)
    head = "the newest" if found.is_head else f"the newest is {found.head}"
    print(f"{database.place}: {found.current or 'empty'} ({head})")
    return 0


async def _check(database: Database) -> int:
    found = await migrate.revision_of(database)
    if not found.is_head:
        print(f"{database.place}: got revision {found.current or 'none'}, wanted {found.head}", file=sys.stderr)
        return 1
    for difference in (different := await migrate.differences(database)):
        print(f"{database.place}: {difference}", file=sys.stderr)
    if not different:
        print(f"{database.place}: as it should be")
    return 1 if different else 0
