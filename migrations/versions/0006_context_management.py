"""What the context policy did to requests."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column; to earlier requests it did nothing."""
    op.add_column("requests", sa.Column("context_management", sa.JSON(), nullable=True))


def downgrade() -> None:
    """Drop it."""
    op.drop_column("requests", "context_management")
