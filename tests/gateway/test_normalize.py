from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.conversation import Content, Conversation, Message, text_part, texts_of
from gateway.normalize.registry import RuleRegistry
from gateway.normalize.rule import Rule, safe
from gateway.normalize.rules import built_in_rules

nasty = st.text(st.sampled_from("a \t\r\n\ufeff`~\u00a0\u200b"), max_size=40)
contents = st.one_of(nasty, st.lists(nasty.map(text_part), min_size=1, max_size=3).map(tuple))
roles = st.sampled_from(["system", "developer", "user", "assistant", "tool"])
conversations = st.lists(st.builds(Message, roles, contents), min_size=1, max_size=5).map(
    lambda messages: Conversation(tuple(messages))
)


def normalized(content: Content, role: str = "system") -> Content:
    return (
        built_in_rules().rule_set().normalize(Conversation((Message(role, content),))).conversation.messages[0].content
    )


def text_of(content: Content) -> str:
    return "|".join(texts_of(content))


@pytest.mark.parametrize(
    "content",
    [
        "Be kind.\nBe short.",
        (text_part("Be kind.\nBe short."),),
        "Be kind.\r\nBe short.",
        "  Be kind.\nBe short.\n\n",
        "\ufeffBe kind.\nBe short.",
        (text_part("\ufeff \r\nBe kind.\r\nBe short.\t"),),
        " \ufeff\ufeff Be kind.\r\r\nBe short.",
    ],
)
def test_system_texts_that_mean_the_same_meet(content: Content) -> None:
    assert normalized(content) == "Be kind.\nBe short."


@pytest.mark.parametrize(
    "text",
    [
        "Be  kind.",
        "Be\u00a0kind.",
        "be kind.",
        "\u200bBe kind.",
        "\u00a0Be kind.",
        "Be kind. \nBe short.",
        "Run:\n```\na\r\nb\r\n```",
        "Run:\n~~~~\na\r\n~~~\r\nb\r\n~~~~",
        "Open:\n```\na \r\n ",
    ],
)
def test_system_texts_that_may_differ_stay_apart(text: str) -> None:
    assert normalized(text) == text


def test_line_ends_around_a_fence_change_and_in_it_do_not() -> None:
    assert normalized("a\r\n```sh\r\nx\r\n```\r\nb\r\nc") == "a\n```sh\nx\r\n```\nb\nc"


def test_several_parts_are_not_glued() -> None:
    assert normalized((text_part(" a\r\n"), text_part("b "))) == (text_part("a\n"), text_part("b"))


@given(conversations)
def test_normalizing_twice_changes_nothing_more(conversation: Conversation) -> None:
    once = built_in_rules().rule_set().normalize(conversation).conversation
    again = built_in_rules().rule_set().normalize(once)
    assert again.conversation == once
    assert again.fired == ()


@given(conversations)
def test_text_after_the_system_head_is_kept_byte_for_byte(conversation: Conversation) -> None:
    after = built_in_rules().rule_set().normalize(conversation).conversation
    head = conversation.num_head_messages
    assert [text_of(message.content) for message in after.messages[head:]] == [
        text_of(message.content) for message in conversation.messages[head:]
    ]
    assert [message.role for message in after.messages] == [message.role for message in conversation.messages]


@given(conversations)
def test_a_rule_that_fired_changed_something_and_none_fires_for_nothing(conversation: Conversation) -> None:
    result = built_in_rules().rule_set().normalize(conversation)
    assert bool(result.fired) == (result.conversation != conversation)


def test_later_system_messages_are_turns() -> None:
    conversation = Conversation((Message("user", "hi"), Message("system", " late \r\n")))
    assert built_in_rules().rule_set().normalize(conversation).conversation == conversation


def test_indented_fence_at_the_start_is_one_before_and_after_trimming() -> None:
    assert normalized(once := normalized("    ```\nA\r\n```\nB\r\n")) == once == "```\nA\r\n```\nB"


def test_user_text_right_after_the_head_is_no_head() -> None:
    conversation = Conversation((Message("system", "a"), Message("developer", "b"), Message("user", "\ufeff hi \r\n")))
    assert conversation.num_head_messages == 2
    assert built_in_rules().rule_set().normalize(conversation).conversation == conversation


def test_fields_of_messages_survive() -> None:
    fields = {"name": "ops", "x_unknown": [1]}
    after = built_in_rules().rule_set().normalize(Conversation((Message("system", " a ", fields),))).conversation
    assert after.messages[0].fields == fields


def test_registry_runs_in_order_and_refuses_a_name_twice() -> None:
    def append(letter: str) -> Rule:
        def apply(conversation: Conversation) -> Conversation:
            return Conversation((*conversation.messages, Message("user", letter)))

        return safe(letter, 1, apply)

    result = RuleRegistry([append("a"), append("b")]).rule_set().normalize(Conversation(()))
    assert [message.content for message in result.conversation.messages] == ["a", "b"]
    assert result.fired == ("a", "b")
    with pytest.raises(ValueError, match="twice"):
        RuleRegistry([append("a"), append("a")])
