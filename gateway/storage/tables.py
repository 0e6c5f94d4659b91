"""The tables, on SQLite and PostgreSQL alike. `migrations/` makes them; a test holds the two to each other.

Times are seconds since 1970 in UTC: one type that both databases compare and subtract alike.
"""

from __future__ import annotations

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Double,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
)

METADATA = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
        "pk": "pk_%(table_name)s",
    }
)

_Sequence = BigInteger().with_variant(Integer, "sqlite")
"""SQLite counts up only where the type is INTEGER, which has 64 bits there."""
_OptionalJson = JSON(none_as_null=True)

STATE = Table(
    "state",
    METADATA,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("change_counter", BigInteger, nullable=False),
    Column("pepper_check", String(64)),
)
"""One row. The counter grows with every change that other gateways must see."""

TENANTS = Table(
    "tenants",
    METADATA,
    Column("id", String(32), primary_key=True),
    Column("name", String(100), nullable=False, unique=True),
    Column("limits", _OptionalJson),
    Column("created_at", Double, nullable=False),
)

KEYS = Table(
    "keys",
    METADATA,
    Column("id", String(32), primary_key=True),
    Column("tenant_id", String(32), ForeignKey("tenants.id"), nullable=False, index=True),
    Column("name", String(100)),
    Column("digest", String(64), nullable=False, unique=True),
    Column("hint", String(8), nullable=False),
    Column("models", _OptionalJson),
    Column("limits", _OptionalJson),
    Column("replaces", String(32)),
    Column("created_at", Double, nullable=False),
    Column("expires_at", Double),
    Column("revoked_at", Double),
)
"""API keys, by HMAC. Rows are never deleted: a server that had a key once never again answers without one."""

PROMPTS = Table(
    "prompts",
    METADATA,
    Column("id", String(32), primary_key=True),
    Column("tenant_id", String(32), ForeignKey("tenants.id"), nullable=False, index=True),
    Column("name", String(100), nullable=False),
    Column("is_public", Boolean, nullable=False),
    Column("active_version", Integer),
    Column("created_at", Double, nullable=False),
    Column("retired_at", Double),
    UniqueConstraint("tenant_id", "name"),
)

PROMPT_VERSIONS = Table(
    "prompt_versions",
    METADATA,
    Column("prompt_id", String(32), ForeignKey("prompts.id"), primary_key=True),
    Column("version", Integer, primary_key=True, autoincrement=False),
    Column("model", String(200), nullable=False),
    Column("source", JSON, nullable=False),
    Column("canonical", Text, nullable=False),
    Column("slots", _OptionalJson),
    Column("rules", _OptionalJson),
    Column("retention", _OptionalJson),
    Column("token_ids", LargeBinary, nullable=False),
    Column("token_sha256", String(64), nullable=False, index=True),
    Column("num_tokens", Integer, nullable=False),
    Column("num_blocks", Integer, nullable=False),
    Column("num_bytes", BigInteger, nullable=False),
    Column("created_at", Double, nullable=False),
)
"""Immutable. `token_ids` are int32, little-endian."""

RULE_SETTINGS = Table(
    "rule_settings",
    METADATA,
    Column("tenant_id", String(32), primary_key=True),
    Column("route", String(100), primary_key=True),
    Column("rule", String(100), primary_key=True),
    Column("mode", String(8), nullable=False),
    Column("params", _OptionalJson),
    Column("updated_at", Double, nullable=False),
)
"""How operators want rules of the normalizer; `*` as tenant or route means every one, as rule all that are on by default."""

REQUESTS = Table(
    "requests",
    METADATA,
    Column("seq", _Sequence, primary_key=True),
    Column("request_id", String(128), nullable=False, index=True),
    Column("completion_id", String(64), nullable=False, index=True),
    Column("created_at", Double, nullable=False, index=True),
    Column("tenant_id", String(32), nullable=False),
    Column("key_id", String(32)),
    Column("prompt_id", String(32)),
    Column("model", String(200), nullable=False),
    Column("endpoint", String(100), nullable=False),
    Column("status", Integer, nullable=False),
    Column("error", String(64)),
    Column("finish_reason", String(32)),
    Column("is_stream", Boolean, nullable=False),
    Column("prepare_seconds", Double),
    Column("queue_seconds", Double),
    Column("first_token_seconds", Double),
    Column("total_seconds", Double, nullable=False),
    Column("num_prompt_tokens", Integer),
    Column("num_cached_tokens", Integer),
    Column("num_output_tokens", Integer),
    Column("saved_seconds", Double),
    Column("reasons", _OptionalJson),
    Column("rules", _OptionalJson),
    Column("context_management", _OptionalJson),
    Column("blocks", _OptionalJson),
    Column("request_body", Text),
    Column("answer_text", Text),
    Index(None, "tenant_id", "seq"),
)
"""The request log, bounded by age and rows. No foreign keys: a row must never fail for what it names."""

REQUEST_HOURS = Table(
    "request_hours",
    METADATA,
    Column("hour", BigInteger, primary_key=True, autoincrement=False),
    Column("tenant_id", String(32), primary_key=True),
    Column("model", String(200), primary_key=True),
    Column("num_requests", BigInteger, nullable=False),
    Column("num_errors", BigInteger, nullable=False),
    Column("num_prompt_tokens", BigInteger, nullable=False),
    Column("num_cached_tokens", BigInteger, nullable=False),
    Column("num_output_tokens", BigInteger, nullable=False),
    Column("num_first_tokens", BigInteger, nullable=False),
    Column("first_token_seconds", Double, nullable=False),
    Column("total_seconds", Double, nullable=False),
)
"""Sums of the request log by hour (its first second), kept when the rows are gone."""

METRIC_MINUTES = Table(
    "metric_minutes",
    METADATA,
    Column("minute", BigInteger, primary_key=True, autoincrement=False),
    Column("name", String(32), primary_key=True),
    Column("label", String(64), primary_key=True),
    Column("value", Double, nullable=False),
    sqlite_with_rowid=False,  # rows lie in the order of the key: reading a day takes a third less time
)
"""Sums by minute (its first second), for a few days: what the dashboard draws."""

AUDIT = Table(
    "audit_log",
    METADATA,
    Column("seq", _Sequence, primary_key=True),
    Column("created_at", Double, nullable=False, index=True),
    Column("actor", String(100), nullable=False),
    Column("action", String(64), nullable=False),
    Column("target", String(128), nullable=False),
    Column("request_id", String(128)),
    Column("details", _OptionalJson),
)
"""Every write through the admin API. Never a secret."""
