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
        op.add_column(name, sa.Column("limits", sa.JSON(), nullable=True))


def downgrade() -> None:
    """Drop them."""
    for name in reversed(TABLES):
        # Not in a batch: that would drop and make the table anew, to which others refer.
        op.drop_column(name, "limits")
