"""Limits of tenants and keys."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

TABLES = ("tenants", "keys")


def upgrade() -> None:
    """Add the columns; who stands there has none."""
    for name in TABLES:
        with op.batch_alter_table(name) as table:
            table.add_column(sa.Column("limits", sa.JSON(), nullable=True))


def downgrade() -> None:
    """Drop them."""
    for name in reversed(TABLES):
        with op.batch_alter_table(name) as table:
            table.drop_column("limits")
