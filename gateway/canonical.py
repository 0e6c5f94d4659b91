"""A chat in canonical form, and what the memory has on it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

from gateway.accounting.accounting import Origin
from gateway.conversation import Conversation, Message
from gateway.normalize.recollection import NextTurn, Recollection
from gateway.normalize.registry import RuleSet
from gateway.normalize.rule import Context, Mode
from gateway.tokenizer import TokenArray

_REMEMBERING = ("echo_repair", "reasoning_restore")
"""Rules for which answers are remembered; where all of them are off, nothing is."""


@dataclass(frozen=True, slots=True)
class Canonical:
    """A prompt as the rules made it, and what the memory has on it."""

    origin: Origin
    written_ids: Mapping[int, TokenArray]
    """By message: the tokens that the engine wrote for it."""
    next_turn: NextTurn | None
    """Remembers the answer; None: it is not to be remembered."""

    @property
    def conversation(self) -> Conversation:
        """What is sent."""
        return self.origin.normalized.conversation

    def sent_as(self, sent: Conversation) -> Canonical:
        """Send another form of it instead. The answer is remembered at the place where the client will send it again.

        What rules saved cannot be told any more: the forms that are compared are not those that were sent.
        """
        if sent is self.conversation:
            return self
        places = {id(message): index for index, message in enumerate(sent.messages)}
        kept = ((places.get(id(self.conversation.messages[index])), ids) for index, ids in self.written_ids.items())
        normalized = replace(self.origin.normalized, conversation=sent, audited=sent, steps=())
        written_ids = {index: ids for index, ids in kept if index is not None}
        return replace(self, origin=replace(self.origin, normalized=normalized), written_ids=written_ids)


def canonical_form(
    rules: RuleSet, conversation: Conversation, memory: Recollection, open_slots: Mapping[str, str]
) -> Canonical:
    """Normalize, and look up what the memory has on the result.

    An answer that goes on with the assistant's own words is no turn by itself, and is not remembered.
    """
    context = Context(memory.scope, memory, open_slots)
    normalized = rules.normalize(conversation, context)
    canonical = normalized.conversation
    modes = {rules.mode_of(name) for name in _REMEMBERING}
    next_turn = None
    if modes != {Mode.OFF} and canonical.messages[-1].role != "assistant":
        next_turn = memory.next_turn(canonical, normalized.audited)
        if rules.mode_of("canonical_call_ids") is Mode.ON:
            next_turn = replace(next_turn, form=partial(_returned, rules, canonical))
    gives_back = rules.mode_of("echo_repair") is Mode.ON
    written_ids = memory.token_ids_of(canonical) if gives_back else {}
    return Canonical(Origin(normalized, rules, context), written_ids, next_turn)


def _returned(rules: RuleSet, canonical: Conversation, turn: Message) -> Message:
    """Give an answer the form in which it comes back: ids of calls follow from those before."""
    if not turn.fields.get("tool_calls"):
        return turn
    messages = (*canonical.messages, turn, Message("user", ""))
    return rules.normalize(replace(canonical, messages=messages)).conversation.messages[-2]
