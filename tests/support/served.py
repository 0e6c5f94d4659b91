"""A server that the providers' SDKs are tried on, and what they ask it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

import anthropic
import openai
from pydantic import BaseModel, Field

MESSAGES: list[Any] = [
    {"role": "system", "content": "You are the friendly guide of a small museum of clocks."},
    {"role": "user", "content": "Name the capital of France."},
]
TOOL: Any = {
    "type": "function",
    "function": {
        "name": "opening_hours",
        "description": "When the museum is open.",
        "parameters": {
            "type": "object",
            "properties": {"day": {"enum": ["saturday", "sunday"]}},
            "required": ["day"],
            "additionalProperties": False,
        },
    },
}
TOOL_CHOICE: Any = {"type": "function", "function": {"name": "opening_hours"}}
CALL = '<tool_call>\n{"name": "opening_hours", "arguments": {"day": "sunday"}}\n</tool_call>'
"""As models write it that were trained on Hermes' form."""


class Clock(BaseModel):
    name: str = Field(max_length=20)
    year: int = Field(ge=1000, le=2000)


ENDS = {"stop", "length"}
MAX_TOKENS = 24


class Part(Enum):
    """What a server may be able to do beside chats through OpenAI's SDK."""

    COMPLETIONS = auto()
    ANTHROPIC = auto()
    RESPONSES = auto()
    TOOLS = auto()
    """It can be made to call a tool."""
    STRUCTURED = auto()
    """It can be held to a schema."""
    CHECKS = auto()
    """It refuses values out of bounds and other models than its own."""
    KEYS = auto()
    """It needs the key that it was given."""


@dataclass(frozen=True, slots=True)
class Served:
    """A server that runs."""

    url: str
    """Without `/v1`."""
    model: str
    api_key: str = "none"
    limited_key: str | None = None
    """Good for one request a minute; None: the server has no limits to try."""
    say: Callable[..., None] = lambda *texts: None
    """Has an echo engine give texts, each as one answer. A model says what it likes, within a grammar."""

    def openai(self, **options: Any) -> openai.OpenAI:
        """Connect, without retries."""
        return openai.OpenAI(**{"base_url": f"{self.url}/v1", "api_key": self.api_key, "max_retries": 0, **options})

    def async_openai(self) -> openai.AsyncOpenAI:
        """Connect, without retries."""
        return openai.AsyncOpenAI(base_url=f"{self.url}/v1", api_key=self.api_key, max_retries=0)

    def anthropic(self, **options: Any) -> anthropic.Anthropic:
        """Connect, without retries."""
        return anthropic.Anthropic(**{"base_url": self.url, "api_key": self.api_key, "max_retries": 0, **options})

    def asked(self, **fields: Any) -> dict[str, Any]:
        """The arguments of a short chat."""
        return {"model": self.model, "messages": MESSAGES, "max_tokens": MAX_TOKENS, "temperature": 0, **fields}

    def message(self, **fields: Any) -> dict[str, Any]:
        """The same as Anthropic has it."""
        system, *turns = MESSAGES
        return {
            "model": self.model,
            "system": system["content"],
            "messages": turns,
            "max_tokens": MAX_TOKENS,
            **fields,
        }

    def response(self, **fields: Any) -> dict[str, Any]:
        """The same as OpenAI's Responses have it."""
        system, *turns = MESSAGES
        asked = {"model": self.model, "instructions": system["content"], "input": turns, "temperature": 0}
        return {**asked, "max_output_tokens": MAX_TOKENS, **fields}
