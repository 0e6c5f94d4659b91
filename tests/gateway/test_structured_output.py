"""`response_format` and `structured_outputs`: what reaches the engine, and what is refused before it does."""

from __future__ import annotations

import json

import httpx
import pytest

from gateway.backends.base import RequestRejectedError
from gateway.structure.fields import structure_of
from gateway.structure.grammar import schema_grammar
from tests.gateway.support.fake_backend import FakeBackend
from tests.gateway.test_bad_input import PATH, assert_error, chat, nested

SCHEMA = {"type": "object", "properties": {"b": {"type": "string"}, "a": {"type": "integer"}}, "required": ["b"]}
FORMAT = "response_format"
OUTPUTS = "structured_outputs"
WHERE = "response_format.json_schema.schema"


def schema_format(schema: object, **options: object) -> dict[str, object]:
    return {FORMAT: {"type": "json_schema", "json_schema": {"name": "n", "schema": schema, **options}}}


def strict(schema: object) -> dict[str, object]:
    return schema_format(schema, strict=True)


def outputs(**options: object) -> dict[str, object]:
    return {OUTPUTS: options}


REFUSED: dict[str, tuple[dict[str, object], str]] = {
    "format-text": ({FORMAT: "json"}, FORMAT),
    "format-untyped": ({FORMAT: {}}, f"{FORMAT}.type"),
    "format-unknown": ({FORMAT: {"type": "xml"}}, f"{FORMAT}.type"),
    "schema-missing": ({FORMAT: {"type": "json_schema"}}, f"{FORMAT}.json_schema"),
    "schema-apart": ({FORMAT: {"type": "json_schema", "schema": SCHEMA}}, f"{FORMAT}.json_schema"),
    "schema-none": (schema_format(None), WHERE),
    "schema-true": (schema_format(True), WHERE),
    "schema-name": ({FORMAT: {"type": "json_schema", "json_schema": {"name": 5}}}, f"{FORMAT}.json_schema.name"),
    "schema-strict": (schema_format(SCHEMA, strict="yes"), f"{FORMAT}.json_schema.strict"),
    "schema-deep": (schema_format({"a": nested(100)}), WHERE),
    "schema-large": (schema_format({"enum": ["x" * 100] * 2000}), WHERE),
    "schema-long-value": (schema_format({"const": "x" * 5000}), WHERE),
    "schema-long-name": (schema_format({"properties": {"x" * 5000: {}}}), WHERE),
    "schema-long-pattern": (schema_format({"pattern": "x" * 5000}), WHERE),
    "schema-titles-are-names": (schema_format({"properties": {"title": {"const": "x" * 5000}}}), WHERE),
    "schema-dialect": (strict({"$schema": 5}), f"{WHERE}.$schema"),
    "type": (schema_format({"properties": {"a": {"type": "text"}}}), f"{WHERE}.properties.a.type"),
    "type-number": (strict({"type": 5}), f"{WHERE}.type"),
    "type-in-list": (strict({"items": {"type": ["string", "null", 5]}}), f"{WHERE}.items.type[2]"),
    "keyword": (strict({"not": {}}), f"{WHERE}.not"),
    "keyword-deep": (
        strict({"properties": {"a": {"items": {"uniqueItems": True}}}}),
        f"{WHERE}.properties.a.items.uniqueItems",
    ),
    "keyword-in-list": (strict({"anyOf": [{}, {"if": {}}]}), f"{WHERE}.anyOf[1].if"),
    "keyword-in-definition": (strict({"$defs": {"d": {"contains": {}}}}), f"{WHERE}.$defs.d.contains"),
    "format-keyword": (strict({"items": {"format": "int32"}}), f"{WHERE}.items.format"),
    "both": ({FORMAT: {"type": "text"}, **outputs(regex="a")}, OUTPUTS),
    "outputs-text": ({OUTPUTS: "a+"}, OUTPUTS),
    "outputs-none": (outputs(), OUTPUTS),
    "outputs-null": (outputs(regex=None, json_object=False), OUTPUTS),
    "outputs-two": (outputs(regex="a", choice=["a"]), OUTPUTS),
    "outputs-unknown": (outputs(structural_tag={}), f"{OUTPUTS}.structural_tag"),
    "json-text": (outputs(json="{"), f"{OUTPUTS}.json"),
    "json-number": (outputs(json=5), f"{OUTPUTS}.json"),
    "json-long-text": (outputs(json=" " * 200_000), f"{OUTPUTS}.json"),
    "json-keyword": (outputs(json={"not": {}}), f"{OUTPUTS}.json.not"),
    "json-object-number": (outputs(json_object=1), f"{OUTPUTS}.json_object"),
    "regex-number": (outputs(regex=5), f"{OUTPUTS}.regex"),
    "regex-empty": (outputs(regex=""), f"{OUTPUTS}.regex"),
    "regex-long": (outputs(regex="a" * 4097), f"{OUTPUTS}.regex"),
    "choice-text": (outputs(choice="a"), f"{OUTPUTS}.choice"),
    "choice-empty": (outputs(choice=[]), f"{OUTPUTS}.choice"),
    "choice-many": (outputs(choice=["a"] * 1001), f"{OUTPUTS}.choice"),
    "choice-number": (outputs(choice=["a", 5]), f"{OUTPUTS}.choice[1]"),
    "choice-long": (outputs(choice=["a" * 4097]), f"{OUTPUTS}.choice[0]"),
    "grammar-empty": (outputs(grammar=""), f"{OUTPUTS}.grammar"),
    "grammar-long": (outputs(grammar="a" * 16_385), f"{OUTPUTS}.grammar"),
    "grammar-json": (outputs(grammar=' {"grammars": []}'), f"{OUTPUTS}.grammar"),
}


@pytest.mark.parametrize(("fields", "param"), REFUSED.values(), ids=REFUSED)
async def test_a_wrong_structure_is_400_by_name(
    client: httpx.AsyncClient, backend: FakeBackend, fields: dict[str, object], param: str
) -> None:
    answer = await client.post(PATH, json=chat(**fields))
    assert_error(answer, 400, code=None, param=param)
    assert answer.json()["error"]["message"].startswith(f"{param}: ")
    assert backend.requests == []
    completion = {"model": "tiny", "prompt": "hi", **fields}
    assert_error(await client.post("/v1/completions", json=completion), 400, code=None, param=param)


def test_the_schema_keeps_its_order_and_our_options_win() -> None:
    structure = structure_of(strict({**SCHEMA, "x-guidance": {"whitespace_pattern": ".*"}}))
    assert structure is not None
    assert structure.field == WHERE
    (grammar,) = json.loads(structure.grammar)["grammars"]
    assert list(grammar["json_schema"]["properties"]) == ["b", "a"]
    assert grammar["json_schema"]["x-guidance"] == {"whitespace_flexible": False, "whitespace_pattern": "[ ]"}


def test_what_is_not_strict_leaves_out_what_cannot_be_enforced() -> None:
    structure = structure_of(schema_format({"not": {}, "format": "int32"}))
    assert structure is not None
    assert json.loads(structure.grammar)["grammars"][0]["json_schema"]["x-guidance"]["lenient"] is True


@pytest.mark.parametrize(
    ("fields", "grammar"),
    [
        ({FORMAT: {"type": "json_object"}}, schema_grammar({"type": "object"})),
        (outputs(json_object=True), schema_grammar({"type": "object"})),
        (outputs(json=json.dumps(SCHEMA)), schema_grammar(SCHEMA)),
        (outputs(regex=r"a/\/[/]\\" + "\n", choice=None), r"start: /a\/\/[\/]\\\n/"),
        (outputs(choice=["a", 'b"\n', "é"]), 'start: "a" | "b\\"\\n" | "é"'),
        (outputs(grammar="root ::= [a-z]"), "root ::= [a-z]"),
        ({FORMAT: {"type": "text"}}, None),
        ({}, None),
    ],
)
async def test_what_reaches_the_engine(
    client: httpx.AsyncClient, backend: FakeBackend, fields: dict[str, object], grammar: str | None
) -> None:
    for path, body in ((PATH, chat(**fields)), ("/v1/completions", {"model": "tiny", "prompt": "hi", **fields})):
        assert (await client.post(path, json=body)).status_code == 200
        assert backend.requests[-1].sampling.grammar == grammar


@pytest.mark.parametrize("stream", [False, True])
async def test_a_refusal_of_the_engine_names_the_field_of_the_client(
    client: httpx.AsyncClient, backend: FakeBackend, stream: bool
) -> None:
    backend.reject = RequestRejectedError(f"{WHERE}: no", param=WHERE)
    answer = await client.post(PATH, json=chat(**strict(SCHEMA), stream=stream))
    assert_error(answer, 400, code=None, param=WHERE)
