"""What is registered: a name, its immutable versions, and how long their blocks are to stay."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gateway.tokenizer import TokenArray


@dataclass(frozen=True, slots=True)
class Retention:
    """How hard the engine tries to keep a prompt's blocks."""

    pin: bool = False
    """Never evicted, within the engine's budget for pins."""
    priority: int = 0
    """Evicted after blocks of a lower priority."""
    expires_at: float | None = None
    """Seconds since 1970 at which pin and priority end; None: never."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """A name that versions belong to."""

    id: str
    name: str
    tenant_id: str
    """Who registered it."""
    is_public: bool
    """Every tenant may use it, and its blocks are shared by all."""
    active_version: int | None
    """The one that traffic is held against and that a request gets which names none."""
    created_at: float
    retired_at: float | None

    @property
    def scope(self) -> str:
        """`public`, or the tenant's id."""
        return "public" if self.is_public else self.tenant_id


@dataclass(frozen=True, slots=True, eq=False)
class PromptVersion:
    """Text that never changes."""

    prompt_id: str
    version: int
    model: str
    source: Mapping[str, Any]
    """`messages` and `tools` as they were registered."""
    canonical: str
    """The same after the normalizer, as JSON."""
    slots: tuple[str, ...]
    rules: Mapping[str, str]
    """Normalizer modes of requests that name this prompt."""
    retention: Retention
    token_ids: TokenArray
    """[num_tokens], int32: the head, up to the first slot or the client's turn."""
    token_sha256: str
    num_blocks: int
    num_bytes: int
    """Of KV cache, for the full blocks."""
    created_at: float

    @property
    def num_tokens(self) -> int:
        """Of the head."""
        return len(self.token_ids)
