"""What the grammar of forced calls lets through, by llguidance itself over single bytes."""

from __future__ import annotations

import json

import pytest
from llguidance import LLMatcher, LLTokenizer

from gateway.answer_pieces import AnswerEnd, WholeAnswer, gather
from gateway.structure.grammar import schema_grammar
from gateway.tools.call_grammar import call_grammar, strict_grammar
from gateway.tools.call_parser import CallParser
from gateway.tools.formats import FORMATS
from gateway.tools.thoughts import ThoughtParser

SCHEMA = {
    "type": "object",
    "properties": {"at": {"type": "integer"}, "x-of": {"$ref": "#/$defs/w"}},
    "required": ["at"],
}
TOOLS = [
    {"type": "function", "function": {"name": "look", "parameters": {**SCHEMA, "$defs": {"w": {"enum": ["a", "é"]}}}}},
    {"type": "function", "function": {"name": 'odd "one"'}},
]
LOOK = '{"name": "look", "%s": {"at": 5, "x-of": "é"}}'
ODD = '{"name": "odd \\"one\\"", "%s": {}}'


def accepts(grammar: str, text: str) -> bool:
    matcher = LLMatcher(LLTokenizer("byte"), grammar)
    assert not matcher.is_error(), matcher.get_error()
    data = list(text.encode())
    return bool(matcher.try_consume_tokens(data) == len(data) and matcher.is_accepting())


def grammar_of(form: str, *, is_parallel: bool = True, thinking: str = "none") -> str:
    return call_grammar(FORMATS[form], TOOLS, lambda _: None, is_parallel=is_parallel, thinking=thinking)


def written(form: str, *calls: str) -> str:
    calls = tuple(call % FORMATS[form].arguments for call in calls)
    return {
        "hermes": "\n".join(f"<tool_call>\n{call}\n</tool_call>" for call in calls),
        "llama3": ";".join(calls),
        "mistral": f"[TOOL_CALLS][{', '.join(calls)}]",
    }[form]


def read(form: str, text: str) -> WholeAnswer:
    parser = CallParser(FORMATS[form], ["look", 'odd "one"'], lambda: "id", is_whole=True)
    return gather(parser.push(text) + parser.flush(), AnswerEnd("stop", None, 0))


@pytest.mark.parametrize("form", FORMATS)
def test_what_it_lets_through_is_read_as_calls_and_nothing_else(form: str) -> None:
    for calls in ([LOOK], [ODD]):
        text = written(form, *calls)
        assert accepts(grammar_of(form), text)
        assert len(read(form, text).calls) == 1
        assert read(form, text).text == ""
    both = written(form, LOOK, ODD)
    assert accepts(grammar_of(form), both) == (form != "llama3")
    assert not accepts(grammar_of(form, is_parallel=False), both)
    assert len(read(form, both).calls) == 2


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize(
    "call",
    [
        LOOK.replace("look", "other"),
        LOOK.replace("5", '"5"'),
        LOOK.replace('"at": 5, ', ""),
        LOOK.replace('"at"', '"no": 1, "at"'),
        LOOK.replace("é", "b"),
        ODD.replace("{}", '{"a": 1}'),
    ],
)
def test_calls_against_the_schema_do_not_pass(form: str, call: str) -> None:
    assert not accepts(grammar_of(form), written(form, call))


def test_the_rule_of_a_schema_says_of_which_tool_it_is_for_errors_name_it() -> None:
    lines = grammar_of("hermes").splitlines()
    assert [line.partition(":")[0] for line in lines if "%json" in line] == [
        "arguments_0_of_look",
        "arguments_1_of_odd__one_",
    ]


@pytest.mark.parametrize("text", ["", "Hello", "Hello " + written("hermes", LOOK)])
def test_text_does_not_pass(text: str) -> None:
    assert not accepts(grammar_of("hermes"), text)


def test_thoughts_may_come_first() -> None:
    call, thought = written("hermes", LOOK), "Hm <b> {so}.\n</think>\n\n"
    assert accepts(grammar_of("hermes", thinking="begun"), thought + call)
    assert not accepts(grammar_of("hermes", thinking="begun"), call)
    for text in (call, "<think>\n" + thought + call):
        assert accepts(grammar_of("hermes", thinking="may"), text)
        assert gather(ThoughtParser(is_begun=False).push(text), AnswerEnd("stop", None, 0)).text == call
    assert not accepts(grammar_of("hermes", thinking="may"), "<think>Hm")


def test_special_tokens_are_named_by_their_ids() -> None:
    ids = {"<tool_call>": 7, "</tool_call>": 8, "<think>": 9, "</think>": 10}
    grammar = call_grammar(FORMATS["hermes"], TOOLS, ids.get, is_parallel=True, thinking="may")
    assert not LLMatcher.validate_grammar(grammar)
    assert all(f"<[{token}]>" in grammar for token in ids.values())


def test_what_the_grammar_engine_does_not_know_of_a_schema_is_left_out() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string", "format": "x-own", "contentEncoding": "base64"}}}
    tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
    grammar = call_grammar(FORMATS["llama3"], [tool], lambda _: None, is_parallel=True)
    assert accepts(grammar, json.dumps({"name": "f", "parameters": {"a": "b"}}))


TEXT_FORMAT = schema_grammar({"type": "object", "properties": {"hot": {"type": "boolean"}}, "required": ["hot"]})


@pytest.mark.parametrize("form", ["hermes", "mistral"])
def test_beside_a_format_the_answer_is_either(form: str) -> None:
    grammar = call_grammar(FORMATS[form], TOOLS, lambda _: None, is_parallel=True, thinking="may", instead=TEXT_FORMAT)
    for text in ('{"hot": true}', written(form, LOOK), '<think>So</think>{"hot": true}'):
        assert accepts(grammar, text)
    for text in ("Hello", "{}", '{"hot": true}' + written("hermes", LOOK), written(form, LOOK.replace("5", '"5"'))):
        assert not accepts(grammar, text)


STRICT = [{"type": "function", "function": {**TOOLS[0]["function"], "strict": True}}, TOOLS[1]]


@pytest.mark.parametrize("form", ["hermes", "mistral"])
def test_calls_of_strict_tools_match_their_schemas_in_any_text(form: str) -> None:
    grammar = strict_grammar(FORMATS[form], STRICT, lambda _: None, thinking="may")
    odd = ODD.replace("{}", '{"any": [1]}')
    for call in (LOOK, odd):
        for text in ("{}", "So: <tool [TOOL {}", "<think>Hm <b></think>\n{}", "{}\nand {}\n", "{}{}"):
            assert accepts(grammar, text.replace("{}", written(form, call)))
    for text in ("", "Hello <tool_ca [TOOL_C", '{"name": "look"}', "a </tool_call> ]"):
        assert accepts(grammar, text)
    for call in (LOOK.replace("5", '"5"'), LOOK.replace('"at": 5, ', ""), LOOK.replace("look", "other")):
        assert not accepts(grammar, "So: " + written(form, call))


def test_a_mark_that_is_a_token_begins_a_strict_call_too() -> None:
    grammar = strict_grammar(FORMATS["hermes"], STRICT, {"<tool_call>": 7, "</tool_call>": 8}.get)
    matcher = LLMatcher(LLTokenizer("byte"), grammar)
    assert not matcher.is_error(), matcher.get_error()
    assert "before: free? <[7]>" in grammar
    assert matcher.try_consume_tokens(list(b"Hi <tool_call>")) < len(b"Hi <tool_call>")  # not in plain letters
