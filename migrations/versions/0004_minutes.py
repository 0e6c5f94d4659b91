"""Sums by the minute, and how long requests took before the engine had them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make the table, and add the column; earlier requests have no such time."""
    op.create_table(
        "metric_minutes",
        sa.Column("minute", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("name", sa.String(length=32), nullable=False),
        sa.Column("label", sa.String(length=64), nullable=False),
        sa.Column("value", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("minute", "name", "label", name="pk_metric_minutes"),
        sqlite_with_rowid=False,
    )
    op.add_column("requests", sa.Column("prepare_seconds", sa.Double(), nullable=True))


def downgrade() -> None:
    """Drop both."""
    op.drop_column("requests", "prepare_seconds")
    op.drop_table("metric_minutes")
