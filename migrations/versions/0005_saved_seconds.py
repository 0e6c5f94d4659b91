"""How long the engine would have computed what requests took from the cache."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column; of earlier requests nobody knows."""
    op.add_column("requests", sa.Column("saved_seconds", sa.Double(), nullable=True))


def downgrade() -> None:
    """Drop it."""
    op.drop_column("requests", "saved_seconds")
