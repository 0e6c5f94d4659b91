"""The first tables of tenants, keys, prompts, rules, requests and audit."""

from __future__ import annotations

import time

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

TABLES = (
    "audit_log",
    "request_hours",
    "requests",
    "rule_settings",
    "state",
    "tenants",
    "keys",
    "prompts",
    "prompt_versions",
)


def upgrade() -> None:
    """Make them."""
    op.create_table(
        "audit_log",
        sa.Column("seq", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("actor", sa.String(length=100), nullable=False),
        sa.Column("action", sa.String(length=64), nullable=False),
        sa.Column("target", sa.String(length=128), nullable=False),
        sa.Column("request_id", sa.String(length=128), nullable=True),
        sa.Column("details", sa.JSON(), nullable=True),
        sa.PrimaryKeyConstraint("seq", name="pk_audit_log"),
    )
    op.create_index("ix_audit_log_created_at", "audit_log", ["created_at"])

    op.create_table(
        "request_hours",
        sa.Column("hour", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("tenant_id", sa.String(length=32), nullable=False),
        sa.Column("model", sa.String(length=200), nullable=False),
        sa.Column("num_requests", sa.BigInteger(), nullable=False),
        sa.Column("num_errors", sa.BigInteger(), nullable=False),
        sa.Column("num_prompt_tokens", sa.BigInteger(), nullable=False),
        sa.Column("num_cached_tokens", sa.BigInteger(), nullable=False),
        sa.Column("num_output_tokens", sa.BigInteger(), nullable=False),
        sa.Column("num_first_tokens", sa.BigInteger(), nullable=False),
        sa.Column("first_token_seconds", sa.Double(), nullable=False),
        sa.Column("total_seconds", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("hour", "tenant_id", "model", name="pk_request_hours"),
    )
    op.create_table(
        "requests",
        sa.Column("seq", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("request_id", sa.String(length=128), nullable=False),
        sa.Column("completion_id", sa.String(length=64), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("tenant_id", sa.String(length=32), nullable=False),
        sa.Column("key_id", sa.String(length=32), nullable=True),
        sa.Column("prompt_id", sa.String(length=32), nullable=True),
        sa.Column("model", sa.String(length=200), nullable=False),
        sa.Column("endpoint", sa.String(length=100), nullable=False),
        sa.Column("status", sa.Integer(), nullable=False),
        sa.Column("error", sa.String(length=64), nullable=True),
        sa.Column("finish_reason", sa.String(length=32), nullable=True),
        sa.Column("is_stream", sa.Boolean(), nullable=False),
        sa.Column("queue_seconds", sa.Double(), nullable=True),
        sa.Column("first_token_seconds", sa.Double(), nullable=True),
        sa.Column("total_seconds", sa.Double(), nullable=False),
        sa.Column("num_prompt_tokens", sa.Integer(), nullable=True),
        sa.Column("num_cached_tokens", sa.Integer(), nullable=True),
        sa.Column("num_output_tokens", sa.Integer(), nullable=True),
        sa.Column("reasons", sa.JSON(), nullable=True),
        sa.Column("rules", sa.JSON(), nullable=True),
        sa.Column("blocks", sa.JSON(), nullable=True),
        sa.Column("request_body", sa.Text(), nullable=True),
        sa.Column("answer_text", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("seq", name="pk_requests"),
    )
    op.create_index("ix_requests_completion_id", "requests", ["completion_id"])
    op.create_index("ix_requests_created_at", "requests", ["created_at"])
    op.create_index("ix_requests_request_id", "requests", ["request_id"])
    op.create_index("ix_requests_tenant_id_seq", "requests", ["tenant_id", "seq"])

    op.create_table(
        "rule_settings",
        sa.Column("tenant_id", sa.String(length=32), nullable=False),
        sa.Column("route", sa.String(length=100), nullable=False),
        sa.Column("rule", sa.String(length=100), nullable=False),
        sa.Column("mode", sa.String(length=8), nullable=False),
        sa.Column("updated_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("tenant_id", "route", "rule", name="pk_rule_settings"),
    )
    op.create_table(
        "state",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("change_counter", sa.BigInteger(), nullable=False),
        sa.Column("pepper_check", sa.String(length=64), nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_state"),
    )
    op.create_table(
        "tenants",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_tenants"),
        sa.UniqueConstraint("name", name="uq_tenants_name"),
    )
    op.create_table(
        "keys",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("tenant_id", sa.String(length=32), nullable=False),
        sa.Column("name", sa.String(length=100), nullable=True),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("hint", sa.String(length=8), nullable=False),
        sa.Column("models", sa.JSON(), nullable=True),
        sa.Column("replaces", sa.String(length=32), nullable=True),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=True),
        sa.Column("revoked_at", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name="fk_keys_tenant_id_tenants"),
        sa.PrimaryKeyConstraint("id", name="pk_keys"),
        sa.UniqueConstraint("digest", name="uq_keys_digest"),
    )
    op.create_index("ix_keys_tenant_id", "keys", ["tenant_id"])

    op.create_table(
        "prompts",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("tenant_id", sa.String(length=32), nullable=False),
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("is_public", sa.Boolean(), nullable=False),
        sa.Column("active_version", sa.Integer(), nullable=True),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("retired_at", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name="fk_prompts_tenant_id_tenants"),
        sa.PrimaryKeyConstraint("id", name="pk_prompts"),
        sa.UniqueConstraint("tenant_id", "name", name="uq_prompts_tenant_id_name"),
    )
    op.create_index("ix_prompts_tenant_id", "prompts", ["tenant_id"])

    op.create_table(
        "prompt_versions",
        sa.Column("prompt_id", sa.String(length=32), nullable=False),
        sa.Column("version", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("model", sa.String(length=200), nullable=False),
        sa.Column("source", sa.JSON(), nullable=False),
        sa.Column("canonical", sa.Text(), nullable=False),
        sa.Column("slots", sa.JSON(), nullable=True),
        sa.Column("rules", sa.JSON(), nullable=True),
        sa.Column("retention", sa.JSON(), nullable=True),
        sa.Column("token_ids", sa.LargeBinary(), nullable=False),
        sa.Column("token_sha256", sa.String(length=64), nullable=False),
        sa.Column("num_tokens", sa.Integer(), nullable=False),
        sa.Column("num_blocks", sa.Integer(), nullable=False),
        sa.Column("num_bytes", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["prompt_id"], ["prompts.id"], name="fk_prompt_versions_prompt_id_prompts"),
        sa.PrimaryKeyConstraint("prompt_id", "version", name="pk_prompt_versions"),
    )
    op.create_index("ix_prompt_versions_token_sha256", "prompt_versions", ["token_sha256"])

    op.execute("INSERT INTO state (id, change_counter) VALUES (1, 0)")
    # Whoever uses a server without keys; a key can be made for it later, and its cache and history stay its own.
    tenants = sa.table("tenants", sa.column("id"), sa.column("name"), sa.column("created_at"))
    op.bulk_insert(tenants, [{"id": "default", "name": "default", "created_at": time.time()}])


def downgrade() -> None:
    """Go back to nothing."""
    for table in reversed(TABLES):
        op.drop_table(table)
