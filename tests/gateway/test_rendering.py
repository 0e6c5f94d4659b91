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
    ],
)
def test_content_is_adapted_to_what_the_template_takes(
    tokenizer: Tokenizer, source: str, content: Content, text: str
) -> None:
    assert rendered(tokenizer, source, Message("assistant", content)) == text


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
