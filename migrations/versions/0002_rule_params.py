"""Parameters of the normalizer's rules, beside their modes."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column; what stands there has none."""
    with op.batch_alter_table("rule_settings") as table:
        table.add_column(sa.Column("params", sa.JSON(), nullable=True))


def downgrade() -> None:
    """Drop it."""
    with op.batch_alter_table("rule_settings") as table:
        table.drop_column("params")
