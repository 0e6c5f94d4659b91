from __future__ import annotations

import pytest

from gateway.conversation import Content, Conversation, Message, text_part
from gateway.errors import InvalidRequestError
from gateway.rendering import PromptRenderer
from gateway.template import ChatTemplate
from gateway.tokenizer import Tokenizer

ONE_TEXT = "{% for m in messages %}[{{ m.content }}]{% endfor %}"
PARTS = "{% for m in messages %}[{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}<{{ p.text }}>{% endfor %}{% endif %}]{% endfor %}"
CALLS = "{% for m in messages %}{% for c in m.tool_calls %}{{ c.function.arguments | tojson }}{% endfor %}{% endfor %}"


def rendered(tokenizer: Tokenizer, source: str, *messages: Message) -> str:
    renderer = PromptRenderer(ChatTemplate(source, special_tokens={}), tokenizer)
    return tokenizer.decode(renderer.token_ids(Conversation(messages)).tolist())


@pytest.mark.parametrize(
    ("source", "content", "text"),
    [
        (ONE_TEXT, "a", "[a]"),
        (ONE_TEXT, (text_part("a"), text_part("b")), "[a\nb]"),
        (ONE_TEXT, None, "[]"),
        (PARTS, "a", "[a]"),
        (PARTS, (text_part("a"), text_part("b")), "[<a><b>]"),
        (PARTS, (text_part("a"), {"type": "refusal", "refusal": "no"}), "[<a><no>]"),
        (ONE_TEXT, ({"type": "refusal", "refusal": "no"},), "[no]"),
    ],
)
def test_content_is_adapted_to_what_the_template_takes(
    tokenizer: Tokenizer, source: str, content: Content, text: str
) -> None:
    assert rendered(tokenizer, source, Message("user" if content else "assistant", content)) == text


@pytest.mark.parametrize(
    ("arguments", "text"), [('{"b":1,"a":2.0}', '{"b": 1, "a": 2.0}'), ("[1]", '"[1]"'), ("{", '"{"')]
)
def test_tool_call_arguments_are_objects_where_they_can_be(tokenizer: Tokenizer, arguments: str, text: str) -> None:
    calls = [{"id": "1", "function": {"name": "f", "arguments": arguments}}]
    assert rendered(tokenizer, CALLS, Message("assistant", None, {"tool_calls": calls})) == text
    assert calls[0]["function"]["arguments"] == arguments


def test_fields_reach_the_template_and_null_ones_do_not(tokenizer: Tokenizer) -> None:
    source = "{% for m in messages %}{{ m.name }}|{{ m.refusal is defined }}{% endfor %}"
    assert rendered(tokenizer, source, Message("user", "x", {"name": "me", "refusal": None})) == "me|False"


def test_tools_for_a_template_without_them_are_refused(tokenizer: Tokenizer) -> None:
    renderer = PromptRenderer(ChatTemplate(ONE_TEXT, special_tokens={}), tokenizer)
    with pytest.raises(InvalidRequestError, match="--chat-template"):
        renderer.check(Conversation((Message("user", "x"),), ({"type": "function"},)))


SWITCHES = "{{ enable_thinking }}|{{ reasoning_effort }}|{{ documents }}|{{ messages[0].content }}"


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({}, "||None|hi"),
        ({"chat_template_kwargs": {"enable_thinking": False}}, "False||None|hi"),
        ({"reasoning_effort": "low"}, "|low|None|hi"),
        ({"reasoning_effort": "low", "chat_template_kwargs": {"reasoning_effort": "high"}}, "|high|None|hi"),
        ({"chat_template_kwargs": {"documents": ["a"]}}, "||['a']|hi"),
        ({"chat_template_kwargs": None, "reasoning_effort": None, "temperature": 1}, "||None|hi"),
    ],
)
def test_switches_of_the_body_reach_the_template(tokenizer: Tokenizer, fields: dict[str, object], text: str) -> None:
    renderer = PromptRenderer(ChatTemplate(SWITCHES, special_tokens={}), tokenizer)
    assert renderer.render(Conversation((Message("user", "hi"),), fields=fields)).text == text


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"chat_template_kwargs": [1]}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs.messages"),
        ({"chat_template_kwargs": {"tools": []}}, "chat_template_kwargs.tools"),
        ({"chat_template_kwargs": {"bos_token": "x"}}, "chat_template_kwargs.bos_token"),
        ({"chat_template_kwargs": {"raise_exception": 1}}, "chat_template_kwargs.raise_exception"),
        ({"chat_template_kwargs": {"add_generation_prompt": False}}, "chat_template_kwargs.add_generation_prompt"),
        ({"chat_template_kwargs": {str(n): n for n in range(65)}}, "chat_template_kwargs"),
        ({"reasoning_effort": 3}, "reasoning_effort"),
    ],
)
def test_switches_that_the_server_sets_itself_are_refused(
    tokenizer: Tokenizer, fields: dict[str, object], param: str
) -> None:
    renderer = PromptRenderer(ChatTemplate(SWITCHES, special_tokens={"bos_token": "<s>"}), tokenizer)
    with pytest.raises(InvalidRequestError) as caught:
        renderer.render(Conversation((Message("user", "hi"),), fields=fields))
    assert caught.value.param == param


def test_special_token_text_in_a_switch_is_only_text(tokenizer: Tokenizer) -> None:
    renderer = PromptRenderer(ChatTemplate("<|turn|>" + SWITCHES, special_tokens={}), tokenizer)
    fields = {"chat_template_kwargs": {"enable_thinking": "<|turn|>"}}
    prompt = renderer.render(Conversation((Message("user", "hi"),), fields=fields))
    assert prompt.text.startswith("<|turn|><|turn|>|")
    assert (prompt.token_ids == prompt.token_ids[0]).sum() == 1


KEEPING = "{% for m in messages %}[{{ m.role }}]{{ m.content }}[end of turn]\n{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"
TRIMMING = KEEPING.replace("m.content }}", "m.content | trim }}")
DROPPING = KEEPING.replace("{{ m.content }}", "{{ m.content if m.role == 'user' }}")
NO_ENDING = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"


@pytest.mark.parametrize(
    ("source", "begun", "end"),
    [
        (KEEPING, "The", "[assistant]The"),
        (KEEPING, "The ", "[assistant]The "),
        (KEEPING, "o", "[assistant]o"),
        (KEEPING, "end of turn]\n", "[assistant]end of turn]\n"),
        (KEEPING, "  a\n", "[assistant]  a\n"),
        (TRIMMING, "The ", "[assistant]The"),
        (TRIMMING, "  o ", "[assistant]o"),
        (NO_ENDING, "The ", "[assistant]The "),
    ],
)
def test_an_answer_that_was_begun_is_continued(tokenizer: Tokenizer, source: str, begun: str, end: str) -> None:
    assert rendered(tokenizer, source, Message("user", "hi"), Message("assistant", begun)).endswith(
        "hi" + source.count("end of turn") * "[end of turn]\n" + end
    )


def test_an_answer_that_the_template_does_not_print_cannot_be_continued(tokenizer: Tokenizer) -> None:
    with pytest.raises(InvalidRequestError, match="continued") as caught:
        rendered(tokenizer, DROPPING, Message("user", "hi"), Message("assistant", "Well"))
    assert caught.value.param == "messages[1].content"


CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}


@pytest.mark.parametrize(
    ("last", "fields"),
    [
        (Message("assistant", None), {}),
        (Message("assistant", ""), {}),
        (Message("assistant", "calls", {"tool_calls": [CALL]}), {}),
        (Message("assistant", "over"), {"continue_final_message": False}),
        (Message("user", "over"), {}),
    ],
)
def test_other_last_messages_are_answered(tokenizer: Tokenizer, last: Message, fields: dict[str, object]) -> None:
    renderer = PromptRenderer(ChatTemplate(KEEPING, special_tokens={}), tokenizer)
    assert renderer.render(Conversation((Message("user", "hi"), last), fields=fields)).text.endswith("[assistant]")


def test_several_parts_of_an_answer_that_was_begun_are_continued_behind_the_last(tokenizer: Tokenizer) -> None:
    begun = Message("assistant", (text_part("a"), text_part("b ")))
    assert rendered(tokenizer, KEEPING, begun).endswith("[assistant]a\nb ")
    assert rendered(tokenizer, PARTS, begun).endswith("<b ")
