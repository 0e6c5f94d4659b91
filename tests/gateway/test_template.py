from __future__ import annotations

from datetime import datetime

import pytest

from gateway.errors import InvalidRequestError
from gateway.template import ChatTemplate, ChatTemplateError

USER = {"role": "user", "content": "hi"}


def render(source: str, *messages: dict[str, object], **options: object) -> str:
    template = ChatTemplate(source, special_tokens={"bos_token": "<s>"}, now=lambda: datetime(2024, 7, 26))
    return template.render(messages or (USER,), **options)


@pytest.mark.parametrize(
    ("source", "rendered"),
    [
        ("{{ bos_token }}{{ messages[0].content }}", "<s>hi"),
        ("{{ missing }}|{{ messages[0].missing }}", "|"),
        ("  {% if true %}\nx\n  {% endif %}\ny", "x\ny"),
        ("{% for m in [1, 2, 3] %}{% if m == 2 %}{% break %}{% endif %}{{ m }}{% endfor %}", "1"),
        ("{% generation %}a{% set x = 1 %}{% endgeneration %}b", "ab"),
        ("{% generation %}{% set x = 1 %}{% endgeneration %}{{ x is defined }}", "False"),
        ("{{ strftime_now('%d %b %Y') }}", "26 Jul 2024"),
        ("{{ {'b': '<é>', 'a': [1]} | tojson }}", '{"b": "<é>", "a": [1]}'),
        ("{{ {'b': 1, 'a': 2} | tojson(indent=1) }}", '{\n "b": 1,\n "a": 2\n}'),
        ("{{ {'b': 1, 'a': 'é'} | tojson(True, none, (',', ':'), true) }}", '{"a":"\\u00e9","b":1}'),
        ("{{ tools }}", "None"),
        ("{{ add_generation_prompt }}", "True"),
    ],
)
def test_template_renders_as_transformers_does(source: str, rendered: str) -> None:
    assert render(source) == rendered


@pytest.mark.parametrize(
    "source",
    [
        "{{ raise_exception('roles must alternate') }}",
        "{{ messages[0].content + 1 }}",
        "{{ messages.append(1) }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ missing.field }}",
    ],
)
def test_template_that_fails_blames_the_messages(source: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        render(source)
    assert caught.value.param == "messages"


def test_template_says_why_it_refused() -> None:
    with pytest.raises(InvalidRequestError, match="roles must alternate"):
        render("{{ raise_exception('roles must alternate') }}")


def test_template_that_does_not_compile_is_an_error_of_its_own() -> None:
    with pytest.raises(ChatTemplateError, match="line 2"):
        ChatTemplate("\n{% if %}", special_tokens={})


@pytest.mark.parametrize(
    ("source", "takes_parts"),
    [
        ("{{ messages[0].content }}", False),
        ("{{ 'x' + messages[0].content }}", False),
        ("{% for part in messages[0].content %}{{ part.text }}{% endfor %}", True),
    ],
)
def test_template_finds_out_whether_it_takes_parts(source: str, takes_parts: bool) -> None:
    assert ChatTemplate(source, special_tokens={}).takes_parts is takes_parts


@pytest.mark.parametrize(
    ("source", "takes_several"),
    [
        ("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}", True),
        ("{% for m in messages %}{{ m.content if m.role == 'user' or loop.first }}{% endfor %}", False),
        ("{{ messages[0].content }}{{ messages[2].content }}{{ messages[1].content }}", False),
        ("{% if messages[1].role == 'system' %}{{ raise_exception('one is enough') }}{% endif %}", False),
    ],
)
def test_template_finds_out_whether_it_takes_several_system_messages(source: str, takes_several: bool) -> None:
    assert ChatTemplate(source, special_tokens={}).takes_system_messages is takes_several
