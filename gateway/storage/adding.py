"""Tables of sums that only grow: rows are added to what is there, by any number of gateways at once."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Table
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection


def upsert_adding(connection: AsyncConnection, table: Table) -> Any:
    """Make the statement that adds rows to a table: what is no part of its primary key is summed.

    Rows must be handed over in the order of their keys, so that two gateways lock them in the same order.
    """
    dialect = sqlite if connection.dialect.name == "sqlite" else postgresql
    statement = dialect.insert(table)
    keys = {column.name for column in table.primary_key}
    added = {c.name: c + statement.excluded[c.name] for c in table.columns if c.name not in keys}
    return statement.on_conflict_do_update(index_elements=sorted(keys), set_=added)
