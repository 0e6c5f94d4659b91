"""Calls in what a model writes: held to a reference that reads the whole text at once."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.answer_pieces import AnswerEnd, CallArguments, CallStart, Text, WholeAnswer, gather
from gateway.tools.call_parser import CallParser
from gateway.tools.formats import FORMATS
from gateway.tools.json_text import JsonText
from tests.gateway.support.whole_calls import loads, read_whole

TOOLS = ("look", "add")
FORM = st.sampled_from(sorted(FORMATS))
_objects = st.sampled_from(
    [
        '{"name": "look", "arguments": {"at": 5}}',
        '{"name": "add", "parameters": {"of": [1, {"a": "}"}, -2.5e3], "é": null}}',
        '{"arguments": {}, "name": "look"}',
        '{"name": "look", "arguments": "{\\"at\\": 1}"}',
        '{"name": "look"}',
        '{"name": "look", "arguments": null, "x": [1]}',
        '{"name": "other", "parameters": {}}',
        '{"name": "look", "name": "add"}',
        '{"name": "look", "arguments": {"a": 1}, x',
        '{"name": "look", "arguments": {"at": ',
        '{"name": 5, "arguments": {}}',
        '{"name": "<tool_call>", "arguments": {}}',
    ]
)
_blanks = st.sampled_from(["", "", " ", "\n", "\n\u00a0"])
_marks = st.sampled_from(
    ["<tool_call>", "</tool_call>", "<|python_tag|>", "[TOOL_CALLS]", "[", "]", ",", ";", "[TOOL_CALLS]["]
)
_words = st.sampled_from(
    ["<tool_", "call>", "<|python", "[TOOL", "</tool_", "{", "}", '"', "\\", ":", "Hello", "é", "<", "tru"]
)
_runs = st.one_of(
    st.builds("<tool_call>{0}{1}{0}</tool_call>".format, _blanks, _objects),
    st.lists(_objects, min_size=1, max_size=3).map(lambda calls: "[TOOL_CALLS][" + ", ".join(calls) + "]"),
    st.lists(_objects, min_size=1, max_size=3).map(";".join),
    st.builds("<|python_tag|>{0}{1}".format, _blanks, _objects),
)
TEXTS = st.lists(_runs | _blanks | _marks | _words | _objects, max_size=8).map("".join)


def new_parser(form: str, *, is_whole: bool, max_calls: int | None = None) -> CallParser:
    return CallParser(FORMATS[form], TOOLS, lambda: "id", is_whole=is_whole, max_calls=max_calls)


def read(chunks: Sequence[str], form: str, *, is_whole: bool = False, max_calls: int | None = None) -> WholeAnswer:
    parser = new_parser(form, is_whole=is_whole, max_calls=max_calls)
    pieces = [piece for chunk in chunks for piece in parser.push(chunk)] + parser.flush()
    assert all(piece.text for piece in pieces if isinstance(piece, Text))
    assert parser.num_calls == sum(isinstance(piece, CallStart) for piece in pieces)
    return gather(pieces, AnswerEnd("stop", None, 0))


def chunks_of(text: str, cuts: Sequence[int]) -> list[str]:
    places = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    return [text[start:end] for start, end in itertools.pairwise(places)]


@given(TEXTS, FORM, st.lists(st.integers(0, 200), max_size=8), st.booleans(), st.sampled_from([None, 1]))
def test_any_cut_gives_the_same(text: str, form: str, cuts: list[int], is_whole: bool, max_calls: int | None) -> None:
    at_once = read([text], form, is_whole=is_whole, max_calls=max_calls)
    assert read(chunks_of(text, cuts), form, is_whole=is_whole, max_calls=max_calls) == at_once
    assert read(list(text), form, is_whole=is_whole, max_calls=max_calls) == at_once


@given(TEXTS, FORM)
@example("<tool_call>\n" * 3 + '{"name": "look"}', "hermes")
@example('{"name": "look", "parameters": {"a": 1}}; {"name": "add", "parameters": {}}', "llama3")
@example('[TOOL_CALLS][{"name": "look", "arguments": {}}, {"name": "add", "arguments": {}}] x', "mistral")
def test_whole_reading_equals_the_reference_and_every_character_is_in_one_of_them(text: str, form: str) -> None:
    found = read_whole(text, FORMATS[form], TOOLS)
    answer = read([text], form, is_whole=True)
    assert answer.text == "".join(found.texts)
    assert [(call.name, loads(call.arguments)) for call in answer.calls] == found.calls
    assert len(answer.text) + found.num_call_chars == len(text)


@given(TEXTS, FORM)
def test_what_streams_is_the_beginning_of_valid_json(text: str, form: str) -> None:
    parser = new_parser(form, is_whole=False)
    checked: dict[int, JsonText] = {}
    for char in text:
        for piece in parser.push(char):
            if isinstance(piece, CallStart):
                checked[piece.index] = JsonText()
            elif isinstance(piece, CallArguments):
                assert all(map(checked[piece.index].accepts, piece.fragment))


@given(TEXTS, FORM)
def test_calls_that_do_not_break_stream_as_they_are_whole(text: str, form: str) -> None:
    whole, streamed = read([text], form, is_whole=True), read([text], form)
    if len(whole.calls) == len(streamed.calls):
        assert streamed == whole
    else:
        assert whole.calls == [call for call in streamed.calls if call in whole.calls]


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=8,
    )
)
def test_json_text_takes_what_is_json(value: object) -> None:
    for text in (json.dumps(value), json.dumps(value, ensure_ascii=False, indent=1)):
        checked = JsonText()
        assert all(map(checked.accepts, text))
        assert checked.is_complete


@given(st.lists(st.sampled_from([*'{}[]:,"\\u0a-+.eE \n\t/', "true", "nul", "12", "\x01"]), max_size=9).map("".join))
def test_json_text_refuses_what_is_not(text: str) -> None:
    checked = JsonText()
    accepted = all(map(checked.accepts, text)) and checked.is_complete
    try:
        loads(text)
        is_json = text == text.lstrip() and (text == text.rstrip())
    except ValueError:
        is_json = False
    assert accepted == is_json


@pytest.mark.parametrize(
    ("text", "said"), [("a < b", "a < b"), ("so <tool", "so"), ("end \n", "end"), ("[TOOL_x", "[TOOL_x")]
)
def test_only_what_may_become_a_call_is_held_back(text: str, said: str) -> None:
    parser = new_parser("hermes", is_whole=False)
    assert "".join(piece.text for piece in parser.push(text) if isinstance(piece, Text)) == said
    assert gather(parser.flush(), AnswerEnd("stop", None, 0)).text == text[len(said) :]


def test_arguments_stream_as_they_come_behind_the_name() -> None:
    parser = new_parser("hermes", is_whole=False)
    assert parser.push('Look.\n<tool_call>\n{"name": "look", "arguments": ') == [Text("Look.")]
    assert parser.push('{"at"') == [CallStart(0, "id", "look"), CallArguments(0, '{"at"')]
    assert parser.push(": [1") == [CallArguments(0, ": [1")]
    assert parser.push("]}}\n</tool_call>\nDone") == [CallArguments(0, "]}"), Text("Done")]


def test_a_call_that_breaks_on_the_way_ends_there_and_the_rest_is_text() -> None:
    answer = read(['<tool_call>{"name": "look", "arguments": {"at": 5, oops'], "hermes")
    assert (answer.calls[0].arguments, answer.text) == ('{"at": 5, ', "oops")


def test_deep_arguments_are_text() -> None:
    text = '<tool_call>{"name": "look", "arguments": {"a": ' + "[" * 100
    assert read([text], "hermes", is_whole=True).text == text


def test_after_as_many_calls_as_are_wanted_nothing_is_read() -> None:
    text = '<tool_call>{"name": "look"}</tool_call>\n<tool_call>{"name": "add"}</tool_call>x'
    answer = read([text], "hermes", max_calls=1)
    assert ([call.name for call in answer.calls], answer.text) == (["look"], "")


def test_half_a_character_in_a_name_or_in_printed_arguments_is_no_call() -> None:
    for call in (r'{"name": "\ud800"}', r'{"name": "look", "arguments": "{\"a\": \"\ud800\"}"}'):
        assert read([f"<tool_call>{call}"], "hermes").calls == []
