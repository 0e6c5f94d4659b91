"""Old uses of tools that a client wants cleared: when, which, and that nothing moves between two clearings."""

from __future__ import annotations

from dataclasses import replace

import orjson
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.context.clearing import Cleared, ToolClearing, clear_tool_uses
from gateway.context.history import History
from gateway.conversation import Conversation, Message
from tests.gateway.context.histories import HISTORIES, answer, beginnings, call, count, history, user, words

USES = ToolClearing(trigger=4, trigger_unit="tool_uses", keep=2)


def clear(conversation: Conversation, clearing: ToolClearing) -> Cleared:
    return clear_tool_uses(History(conversation, count, document_tokens=2**31), clearing, count)


def uses(number: int, num_words: int = 100, tool: str = "search") -> list[Message]:
    return [message for index in range(number) for message in call(index, words(num_words, index), tool)]


def num_cleared(cleared: Cleared) -> int:
    return sum(edit.number for edit in cleared.edits)


def test_nothing_is_cleared_up_to_the_trigger() -> None:
    chat = history(user("go"), uses(4))
    assert clear(chat, USES) == Cleared(chat)
    assert clear(chat, USES).conversation is chat


def test_above_the_trigger_all_but_the_last_are_cleared_and_say_what_was_there() -> None:
    chat = history(user("go"), uses(5))
    cleared = clear(chat, USES)
    texts = [message.content for message in cleared.conversation.messages if message.role == "tool"]
    assert [edit.kind for edit in cleared.edits] == ["clear_tool_uses_20250919"]
    assert num_cleared(cleared) == 3
    assert all(isinstance(text, str) and text.startswith("[The result of search") for text in texts[:3])
    assert texts[3:] == [words(100, 3), words(100, 4)]
    assert cleared.is_new
    assert not clear(replace(chat, messages=(*chat.messages, *call(5, "more"))), USES).is_new


def test_uses_that_were_cleared_do_not_count_again() -> None:
    assert [num_cleared(clear(history(user("go"), uses(number)), USES)) for number in range(4, 10)] == [
        0,
        3,
        3,
        3,
        6,
        6,
    ]


def test_excluded_tools_are_neither_cleared_nor_counted() -> None:
    chat = history(user("go"), uses(5), uses(5, tool="read"))
    cleared = clear(chat, replace(USES, exclude_tools=frozenset({"search"})))
    assert cleared.conversation.messages[: len(history(user("go"), uses(5)).messages)] == chat.messages[:12]
    assert num_cleared(cleared) == 3
    assert not clear(history(user("go"), uses(5)), replace(USES, exclude_tools=frozenset({"search"}))).edits


def test_inputs_are_cleared_where_asked_for() -> None:
    asked = orjson.dumps({"query": words(50)}).decode()

    def made(tool: str) -> list[Message]:
        said, result = call(0, words(100), tool)
        [made_call] = said.fields["tool_calls"]
        function = {**made_call["function"], "arguments": asked}
        return [replace(said, fields={"tool_calls": [{**made_call, "function": function}]}), result]

    chat = history(user("go"), made("search"), made("read"), uses(4, tool="last"))
    found: dict[str, list[str]] = {}
    for name, inputs in {"all": True, "none": False, "read": frozenset({"read"})}.items():
        messages = clear(chat, replace(USES, clear_inputs=inputs)).conversation.messages
        calls = [entry for message in messages for entry in message.fields.get("tool_calls", ())]
        found[name] = [entry["function"]["arguments"] for entry in calls][:2]
    assert found == {"all": ["{}", "{}"], "none": [asked, asked], "read": [asked, "{}"]}
    with_inputs, without = (clear(chat, replace(USES, clear_inputs=inputs)).num_tokens for inputs in (False, True))
    assert without > with_inputs + 50


def test_tokens_trigger_too_and_a_clearing_must_be_worth_it() -> None:
    chat = history(user("go"), uses(10))
    tokens = ToolClearing(trigger=1000, keep=2)
    assert num_cleared(clear(chat, tokens)) > 0
    assert num_cleared(clear(chat, replace(tokens, clear_at_least=100_000))) == 0
    by_default, each_turn = (
        sum(clear(part, wanted).is_new for part in beginnings(chat))
        for wanted in (tokens, replace(tokens, clear_at_least=0))
    )
    assert 0 < by_default < each_turn


def test_cleared_tokens_do_not_count_again() -> None:
    each_time = ToolClearing(trigger=1500, keep=2, clear_at_least=0)
    is_new = [clear(part, each_time).is_new for part in beginnings(history(user("go"), uses(16)))]
    first = is_new.index(True)
    assert is_new[first + 1 : first + 4] == [False] * 3
    assert sum(is_new) > 1


def test_short_results_stay() -> None:
    chat = history(user("go"), [message for number in range(20) for message in call(number, "ok")])
    assert clear(chat, USES).conversation is chat


_CLEARINGS = st.builds(
    ToolClearing,
    trigger=st.integers(0, 3000),
    trigger_unit=st.just("input_tokens"),
    keep=st.integers(0, 4),
    clear_at_least=st.none() | st.integers(0, 1000),
    clear_inputs=st.booleans(),
) | st.builds(ToolClearing, trigger=st.integers(0, 8), trigger_unit=st.just("tool_uses"), keep=st.integers(0, 4))


@settings(max_examples=40)
@given(HISTORIES, _CLEARINGS)
def test_between_two_clearings_what_was_sent_stays(conversation: Conversation, clearing: ToolClearing) -> None:
    before: tuple[Message, ...] = ()
    for beginning in beginnings(conversation):
        cleared = clear(beginning, clearing)
        sent = cleared.conversation.messages
        assert cleared.is_new or sent[: len(before)] == before
        before = sent


@settings(max_examples=40)
@given(HISTORIES, _CLEARINGS)
def test_only_results_and_inputs_change_and_get_shorter(conversation: Conversation, clearing: ToolClearing) -> None:
    cleared = clear(conversation, clearing)
    assert len(cleared.conversation.messages) == len(conversation.messages)
    for before, after in zip(conversation.messages, cleared.conversation.messages, strict=True):
        assert (before.role, before.fields.keys()) == (after.role, after.fields.keys())
        assert before.content == after.content or before.role == "tool"
        assert count(str(after.content)) <= count(str(before.content))
    answered = answer("done")
    assert (
        clear(replace(conversation, messages=(*conversation.messages, answered)), clearing).num_tokens
        >= cleared.num_tokens
    )
