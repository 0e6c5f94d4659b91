"""What a client asks to be told about the cache."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DiagnosticsRequest:
    """Which diagnostics a client wants, each with the earlier response that it names."""

    anthropic: bool = False
    previous_message_id: str | None = None
    """None: this is the first turn."""
    comparison_response_id: str | None = None
    """OpenAI's; None: not asked for."""
