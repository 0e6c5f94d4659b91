"""A chat for an upstream: from the bytes that came to those that are sent on.

The gateway reads as little of a body as it needs. What it cannot read as a conversation is the upstream's to judge, and is
passed on as it came.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import orjson

from gateway import checks
from gateway.accounting.accounting import Origin
from gateway.auth import Identity
from gateway.chat_request import json_object
from gateway.conversation import Conversation
from gateway.errors import InvalidRequestError
from gateway.normalize.memory import TurnMemory
from gateway.normalize.modes import RuleModes
from gateway.normalize.recollection import NextTurn, Recollection
from gateway.normalize.rule import Context
from gateway.threads import PromptThreads
from gateway.upstream.endpoints import UpstreamEndpoint

INLINE_BYTES = 64_000
"""Smaller bodies are no work for a thread: nothing is tokenized before they are sent."""
REMEMBERING = frozenset({"echo_repair", "reasoning_restore"})
"""Rules for which answers are remembered; where all of them are off, nothing is."""
_UNREAD = ("unread",)
_MOST = ("max_completion_tokens", "max_tokens", "max_output_tokens")
_BEGINNING_CHARS = 512
_BYTES_A_TOKEN = 4
"""Of English text; what was used is counted when the upstream has told it."""


@dataclass(frozen=True, slots=True)
class UpstreamBody:
    """A body, checked as far as a gateway must."""

    model: str
    """Empty: it names none, and need not."""
    stream: bool
    fields: dict[str, Any]
    body: bytes
    """As it came."""


@dataclass(frozen=True, slots=True)
class Outgoing:
    """What is sent on."""

    body: bytes
    rules: tuple[str, ...]
    """Names of those that fired; `unread` where the messages are of a kind that only the upstream knows."""
    affinity: bytes
    """Equal for chats with the same system head and tools; without both, for those of the same first turn."""
    origin: Origin | None = None
    """The chat before and after the rules; None: it was not read as one."""
    next_turn: NextTurn | None = None
    """Remembers the answer; None: it is not to be remembered."""


class UpstreamIngress:
    """Prepares chats."""

    def __init__(self, modes: RuleModes, threads: PromptThreads, memory: TurnMemory) -> None:
        self._modes = modes
        self._memory = memory
        self._threads = threads

    async def prepare(self, chat: UpstreamBody, *, endpoint: UpstreamEndpoint, identity: Identity) -> Outgoing:
        """Normalize what came to an endpoint."""
        return await self._threads.run(len(chat.body), self._prepare, chat, endpoint, identity)

    def _prepare(self, chat: UpstreamBody, endpoint: UpstreamEndpoint, identity: Identity) -> Outgoing:
        # A key for some models only: the upstream must read the same model that was checked, whatever it makes of a
        # field that is given twice.
        body, form = chat.body if identity.models is None else orjson.dumps(chat.fields), endpoint.form
        if form is None:
            return Outgoing(body, (), _digest(identity, _beginning(chat.fields)))
        try:
            conversation = form.read(chat.fields)
        except InvalidRequestError:
            return Outgoing(body, _UNREAD, _digest(identity, _beginning(chat.fields)))
        memory = Recollection(self._memory, identity.scope)
        rules = self._modes.rule_set(identity.tenant, endpoint.route, only=form.rules)
        context = Context(identity.scope, memory)
        normalized = rules.normalize(conversation, context)
        canonical = normalized.conversation
        if normalized.fired and form.write is not None:
            body = orjson.dumps(form.write(chat.fields, canonical))
        remembers = REMEMBERING & (rules.on | rules.audit) and canonical.messages[-1].role != "assistant"
        next_turn = memory.next_turn(canonical, normalized.audited) if remembers else None
        origin = Origin(normalized, rules, context)
        return Outgoing(body, normalized.fired, _affinity(identity, canonical), origin, next_turn)


def parse_body(body: bytes, *, needs_model: bool = True) -> UpstreamBody:
    """Check a body.

    Raises: InvalidRequestError: it is no JSON object, or names no model.
    """
    fields = json_object(body)
    if "model" not in fields and needs_model:
        raise InvalidRequestError("model: missing, wanted the id of a model of the upstream", param="model")
    model = checks.text("model", fields["model"]) if "model" in fields else ""
    return UpstreamBody(model, fields.get("stream") is True, fields, body)


def most_tokens(chat: UpstreamBody) -> int:
    """Say how many tokens prompt and answer may take together, as far as can be told without a tokenizer."""
    asked = [chat.fields.get(name) for name in _MOST]
    return len(chat.body) // _BYTES_A_TOKEN + next((value for value in asked if type(value) is int and value > 0), 0)


def _affinity(identity: Identity, conversation: Conversation) -> bytes:
    count = conversation.num_head_messages
    head = conversation.messages[: count or (0 if conversation.tools else 1)]
    return _digest(identity, [[(message.role, message.content) for message in head], conversation.tools])


def _beginning(fields: dict[str, Any]) -> object:
    """Give what prompts that can share a cache have alike."""
    if "instructions" in fields or "tools" in fields:
        return [fields.get("instructions"), fields.get("tools")]
    said = next((fields[name] for name in ("messages", "prompt", "input") if name in fields), None)
    return said[:_BEGINNING_CHARS] if isinstance(said, str) else said[:1] if isinstance(said, list) else said


def _digest(identity: Identity, value: object) -> bytes:
    return identity.scope.encode() + orjson.dumps(value)
