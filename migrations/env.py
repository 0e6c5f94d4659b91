"""Runs migrations on the connection that the gateway hands over, or for `alembic -x db=URL …` on one of its own."""

from __future__ import annotations

import asyncio

from alembic import context
from sqlalchemy import Connection

from gateway.storage.database import Database
from gateway.storage.tables import METADATA


def run(connection: Connection) -> None:
    """Run what the command asked for."""
    context.configure(
        connection=connection,
        target_metadata=METADATA,
        render_as_batch=True,  # SQLite cannot alter a column in place
        compare_server_default=True,
    )
    with context.begin_transaction():
        context.run_migrations()


async def run_by_url(url: str) -> None:
    """Open the database that `-x db=URL` names."""
    database = Database(url)
    try:
        async with database.write() as connection:
            await connection.run_sync(run)
    finally:
        await database.close()


handed_over = context.config.attributes.get("connection")
if handed_over is not None:
    run(handed_over)
else:
    given = context.get_x_argument(as_dictionary=True).get("db")
    if not isinstance(given, str):
        raise SystemExit("alembic: -x db=URL is missing; `prefixgate db` finds the database by itself")
    asyncio.run(run_by_url(given))
