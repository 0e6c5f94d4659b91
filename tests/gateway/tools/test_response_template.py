"""Answers read by a model's response template: held to what transformers parses of the whole text."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from transformers.utils.chat_parsing.response_parser import parse_response

from gateway.answer_pieces import AnswerEnd, CallArguments, CallStart, Text, Thought, WholeAnswer, gather
from gateway.model_files import ModelFiles, ModelFilesError
from gateway.tokenizer import Tokenizer
from gateway.tools.reading import AnswerForm
from gateway.tools.response_template import ResponseForm
from tests.gateway.support.tiny_model import write_model
from tests.gateway.tools.test_call_parser import chunks_of
from tests.gateway.tools.test_calls import TOOL, ask, chat, names_of, open_special, stream

TOOLS = [TOOL]
START = "<|bot|>\n"
TEMPLATE: dict[str, Any] = {
    "defaults": {"role": "assistant"},
    "start_anchor": START,
    "fields": {
        "thinking": {"open": "<hm>", "close": "</hm>"},
        "tool_calls": {
            "open_pattern": r"\s*<do (?P<name>\w+)>",
            "close": "</do>",
            "repeats": True,
            "content": "xml-inline",
            "content_args": {"tag_pattern": r"<(?P<key>\w+)=(?P<value>.*?)>"},
            "transform": {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}},
        },
        "content": {"close_pattern": r"\s*<\|end\|>"},
    },
}
JSON_CALLS: dict[str, Any] = {
    "start_anchor": START,
    "fields": {
        "tool_calls": {"open": "<do>", "close": "</do>", "repeats": True, "content": "json"},
        "content": {},
    },
}
GOOD = ["<do look><at=5></do>", "\n<do stop></do>", "<do look><at=5><at=x></do>"]
_calls = st.sampled_from([*GOOD, '<do>{"name": "look", "arguments": {"at": 5}}</do>', "<do>{</do>"])
_words = st.sampled_from(
    ["<do look>", "</do>", "<do ", "<do>", "<hm>", "</hm>", "<|end|>", " <|en", " ", "\n", "Hello", "é", "<", "d", "o>"]
)
TEXTS = st.lists(_calls | _words, max_size=9).map("".join)
SPECS = st.sampled_from([TEMPLATE, JSON_CALLS])


def read(
    chunks: Sequence[str],
    spec: Mapping[str, Any] = TEMPLATE,
    *,
    prompt: str = "",
    has_calls: bool = True,
    max_calls: int | None = None,
) -> WholeAnswer:
    form = ResponseForm.of(spec, has_thoughts=True)
    reader = form.reader(prompt, TOOLS, lambda: "id", has_calls=has_calls, max_calls=max_calls)
    pieces = [piece for chunk in chunks for piece in reader.push(chunk)] + reader.flush()
    assert all(piece.text for piece in pieces if isinstance(piece, Text | Thought))
    assert reader.num_calls == sum(isinstance(piece, CallStart) for piece in pieces)
    return gather(pieces, AnswerEnd("stop", None, 0))


def tight(text: str) -> str:
    return "".join(text.split())


@given(TEXTS, SPECS, st.lists(st.integers(0, 120), max_size=8), st.booleans(), st.sampled_from([None, 1]))
def test_any_cut_gives_the_same(
    text: str, spec: dict[str, Any], cuts: list[int], has_calls: bool, max_calls: int | None
) -> None:
    whole = read([text], spec, has_calls=has_calls, max_calls=max_calls)
    assert read(chunks_of(text, cuts), spec, has_calls=has_calls, max_calls=max_calls) == whole
    assert read(list(text), spec, has_calls=has_calls, max_calls=max_calls) == whole


@given(
    st.sampled_from(["", "<hm>", "<hm>\n"]),
    st.sampled_from(["", "so", " so.\n"]),
    st.sampled_from(["", "Hello", "\n\nHe < llo \n"]),
    st.lists(st.sampled_from(GOOD), max_size=3).map("".join),
    st.sampled_from(["", "<|end|>", "\n<|end|>"]),
)
def test_it_is_what_transformers_parses(prompt: str, thought: str, text: str, calls: str, end: str) -> None:
    written = (f"{thought}</hm>" if prompt else f"<hm>{thought}</hm>" if thought else "") + text + calls + end
    prompt = f"<|bot|>\nold<|end|>{START}{prompt}"
    wanted = parse_response(written, TEMPLATE, prefix=prompt, tools=TOOLS)
    got = read(list(written), prompt=prompt)
    assert (got.thought, got.text) == (wanted.get("thinking", ""), wanted.get("content", ""))
    functions = [call["function"] for call in wanted.get("tool_calls", ())]
    assert [(call.name, json.loads(call.arguments)) for call in got.calls] == [
        (function["name"], function["arguments"]) for function in functions
    ]


@given(st.lists(st.sampled_from(["<do>", "{", "}", "</do>", '{"name": 5}', "Hi", " ", "\n", "<d"]), max_size=9))
@example(["Hi ", "<do>", "{", "</do>", " <do>", "}"])
def test_what_is_no_call_is_text(parts: list[str]) -> None:
    text = "".join(parts)
    assert tight(read(parts, JSON_CALLS).text) == tight(text)


def test_arguments_have_the_types_of_the_schema() -> None:
    assert read(["<do look><at=5></do>"]).calls[0].arguments == '{"at": 5}'


def test_text_streams_and_a_call_comes_when_it_is_over() -> None:
    reader = ResponseForm.of(TEMPLATE, has_thoughts=True).reader(
        "", TOOLS, lambda: "id", has_calls=True, max_calls=None
    )
    assert reader.push("<hm>so ") == [Thought("so")]
    assert reader.push("far</hm>\nHe") == [Thought(" far"), Text("He")]
    assert reader.push("llo \n<do look><at") == [Text("llo")]
    assert reader.push("=5></do>") == [CallStart(0, "id", "look"), CallArguments(0, '{"at": 5}')]


def test_texts_are_joined_as_the_template_says() -> None:
    spec = {**TEMPLATE, "fields": {**TEMPLATE["fields"], "content": {"repeats": True, "join": "\n"}}}
    assert read(["A <do stop></do> B <do stop></do>"], spec).text == "A\nB"


def test_without_calls_and_without_thoughts_their_marks_are_text() -> None:
    form = ResponseForm.of(TEMPLATE, has_thoughts=False)
    reader = form.reader("", TOOLS, lambda: "id", has_calls=False, max_calls=None)
    written = "<hm>so</hm> <do look></do>"
    assert gather(reader.push(written) + reader.flush(), AnswerEnd("stop", None, 0)).text == written


def broken(**field: Any) -> dict[str, Any]:
    return {**TEMPLATE, "fields": {"tool_calls": {**TEMPLATE["fields"]["tool_calls"], **field}}}


@pytest.mark.parametrize(
    ("spec", "wanted"),
    [
        ([], "must be a dict"),
        ({"fields": {"content": {}}}, "start_anchor"),
        ({"start_anchor": "x", "fields": {"weather": {}}}, "the field weather"),
        ({"start_anchor": "x", "fields": {"content": {"content": "json"}}}, "wanted the text itself"),
        (broken(content="yaml"), "yaml"),
        (broken(content_args={}), "tag_pattern"),
        (broken(content_args={"tag_pattern": "("}), "content_args"),
        (broken(open_pattern="("), "open_pattern"),
        (broken(transform={"function": {"name": "{title}"}}), "got {title}, wanted one of content, name"),
    ],
)
def test_a_template_that_cannot_be_used_is_an_error_at_the_start(tmp_path: Path, spec: Any, wanted: str) -> None:
    write_model(tmp_path)
    files = ModelFiles.from_folder(tmp_path, "tiny")
    with pytest.raises(ModelFilesError, match=r"response_template: .*--tool-parser") as caught:
        AnswerForm.of(files.chat_template, Tokenizer(files.tokenizer_file), spec)
    assert wanted in str(caught.value)


async def test_it_is_read_from_the_tokenizer_and_a_named_parser_goes_before(tmp_path: Path) -> None:
    chat_template = "{% for m in messages %}{{ m.content }}{% endfor %}<|bot|>\n"
    said = "<hm>So.</hm>Hello <do look><at=5></do>"
    spec = json.loads(json.dumps(TEMPLATE).replace("hm>", "think>"))
    said = said.replace("hm>", "think>")
    config = {"chat_template": chat_template, "response_template": spec}
    settings: dict[str, Any] = {"tool_template": "hermes", "config": config}
    async with open_special(tmp_path, chat_template, said, **settings) as (client, _):
        message = (await ask(client, chat()))["choices"][0]["message"]
        assert (message["reasoning_content"], message["content"]) == ("So.", "Hello")
        assert names_of(message["tool_calls"]) == ["look"]
        chunks = await stream(client, chat())
        assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"
    async with open_special(tmp_path, chat_template, said, **settings, tool_parser="hermes") as (client, _):
        assert "<do look>" in (await ask(client, chat()))["choices"][0]["message"]["content"]


@pytest.mark.slow
def test_it_loads_no_torch() -> None:
    code = "import sys, gateway.tools.response_template; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "False\n"
