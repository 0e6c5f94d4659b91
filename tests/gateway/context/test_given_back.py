"""What the engine wrote is found again in a chat that is cut, ids of calls that were renumbered with it."""

from __future__ import annotations

import numpy as np

from gateway.canonical import Canonical, canonical_form
from gateway.context.editor import ContextEditor
from gateway.context.estimate import estimated_tokens
from gateway.context.policy import ContextPolicy
from gateway.conversation import Conversation, Message
from gateway.normalize.memory import TurnMemory
from gateway.normalize.recollection import Recollection
from tests.gateway.context.histories import history, user, words
from tests.gateway.support.chats import rule_set

POLICY = ContextPolicy(keep_units=2)


def test_tokens_of_answers_stand_for_the_same_answers() -> None:
    memory, turns = TurnMemory(), list[Message]()
    written: dict[str, list[int]] = {}
    cut: Canonical | None = None
    for number in range(12):
        turns.append(user(words(120, number)))
        cut = cut_form(memory, history(*turns))
        call = {"id": f"odd-{number}", "type": "function", "function": {"name": "look", "arguments": "{}"}}
        said = Message("assistant", f"Answer {number}.", {"tool_calls": [call]})
        written[f"Answer {number}."] = [number, 7]
        assert cut.next_turn is not None
        cut.next_turn.remember(said, written[f"Answer {number}."])
        turns += [said, Message("tool", "so", {"tool_call_id": f"odd-{number}"}), Message("assistant", "So.")]
    assert cut is not None
    sent = cut.conversation.messages
    assert len(sent) < len(turns)
    calling = [index for index, message in enumerate(sent) if message.fields.get("tool_calls")]
    assert calling
    assert sorted(cut.written_ids) == calling
    for index, ids in cut.written_ids.items():
        np.testing.assert_array_equal(ids, written[str(sent[index].content)])
        number = str(sent[index].content).removeprefix("Answer ").rstrip(".")
        assert sent[index].fields["tool_calls"][0]["id"] == f"call_{number}"
        assert sent[index + 1].fields["tool_call_id"] == f"call_{number}"


def cut_form(memory: TurnMemory, conversation: Conversation) -> Canonical:
    canonical = canonical_form(rule_set("canonical_call_ids"), conversation, Recollection(memory, "t"), {})
    fitted = ContextEditor(estimated_tokens, memory).edit(canonical.conversation, POLICY, 2000, "t")
    return canonical.sent_as(fitted.conversation)
