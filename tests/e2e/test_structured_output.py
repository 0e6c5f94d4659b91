"""Answers of the real model that must look like something do, through HTTP, at temperature 1."""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

import httpx
import jsonschema
import openai
import pydantic
import pytest

from tests.e2e.structured_cases import SCHEMAS
from tests.support.real_model import MODEL
from tests.support.server import Server

pytestmark = pytest.mark.model

NUM_RUNS = 10
"""Of each schema in the slow test."""


def ask(server: Server, question: str, **fields: Any) -> httpx.Response:
    messages = [{"role": "user", "content": f"{question} Answer in JSON."}]
    body = {"model": MODEL, "messages": messages, "max_tokens": 900, **fields}
    return httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=300)


def schema_format(schema: dict[str, Any], *, strict: bool = True) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "answer", "strict": strict, "schema": schema}}


def content(answer: httpx.Response) -> str:
    assert answer.status_code == 200, answer.text
    (choice,) = answer.json()["choices"]
    assert choice["finish_reason"] == "stop", choice
    return choice["message"]["content"]


def check(server: Server, name: str, seed: int) -> None:
    """One run of one schema: its answer parses and validates."""
    question, schema = SCHEMAS[name]
    said = content(ask(server, question, response_format=schema_format(schema), temperature=1.0, seed=seed))
    checker = jsonschema.FormatChecker()
    jsonschema.Draft202012Validator(schema, format_checker=checker).validate(json.loads(said))


@pytest.mark.parametrize("name", ["one-of", "dates", "tree", "unicode"])
def test_an_answer_matches_its_schema(server: Server, name: str) -> None:
    check(server, name, seed=1)


@pytest.mark.slow
def test_200_of_200_answers_match_their_schemas(server: Server) -> None:
    assert len(SCHEMAS) == 20
    runs = [(name, seed) for seed in range(NUM_RUNS) for name in SCHEMAS]
    with ThreadPoolExecutor(8) as threads:
        assert len(list(threads.map(lambda run: check(server, *run), runs))) == 200


@pytest.mark.parametrize(
    ("fields", "pattern"),
    [
        ({"structured_outputs": {"choice": ["good/bad", 'so "so"', "é\n"]}}, 'good/bad|so "so"|é\n'),
        ({"structured_outputs": {"regex": r"[A-Z]{2}/\d{3}"}}, r"[A-Z]{2}/\d{3}"),
        ({"structured_outputs": {"grammar": 'start: "<" WORD ">"\nWORD: /[a-z]{3,5}/'}}, "<[a-z]{3,5}>"),
        ({"structured_outputs": {"grammar": 'root ::= "n" d d\nd ::= [0-9]'}}, "n[0-9]{2}"),
        ({"structured_outputs": {"json": {"enum": [{"a": 1}]}}}, r'\{ ?"a" ?: ?1 ?\}'),
    ],
    ids=["choice", "regex", "lark", "gbnf", "json"],
)
def test_an_answer_matches_what_vllm_s_field_says(server: Server, fields: dict[str, Any], pattern: str) -> None:
    assert re.fullmatch(pattern, content(ask(server, "How was it?", temperature=1.0, seed=4, **fields)))


def test_completions_are_held_to_it_as_well(server: Server) -> None:
    body = {"model": MODEL, "prompt": "Colours:", "structured_outputs": {"choice": ["red", "blue"]}}
    answer = httpx.post(f"{server.url}/v1/completions", json=body, timeout=300).json()
    assert answer["choices"][0]["text"] in ("red", "blue")
    assert answer["choices"][0]["finish_reason"] == "stop"


def test_json_mode_gives_an_object_or_its_beginning(server: Server) -> None:
    answer = ask(server, "Describe Paris.", response_format={"type": "json_object"}, max_tokens=24, seed=2)
    (choice,) = answer.json()["choices"]
    said = choice["message"]["content"]
    assert said.startswith("{")
    assert not re.search(r"[{,:\[]\s{2}", said), "more white space than one"
    if choice["finish_reason"] == "stop":
        assert isinstance(json.loads(said), dict)


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        (
            {"response_format": schema_format({"type": "integer", "minimum": 5, "maximum": 3})},
            "response_format.json_schema.schema",
            "Unsatisfiable schema",
        ),
        ({"structured_outputs": {"regex": "a(?=b)"}}, "structured_outputs.regex", "invalid regex"),
        ({"structured_outputs": {"grammar": "start: nowhere"}}, "structured_outputs.grammar", "unknown name"),
        (
            {
                "response_format": schema_format(
                    {"allOf": [{"type": "string", "pattern": f".*{c}.*"} for c in "abcdefghijklmnopqrst"]}
                )
            },
            "response_format.json_schema.schema",
            "too complex",
        ),
    ],
    ids=["unsatisfiable", "regex", "grammar", "hostile"],
)
def test_what_cannot_be_compiled_is_400_and_the_server_goes_on(
    server: Server, fields: dict[str, Any], param: str, words: str
) -> None:
    for _ in range(2):  # the second time it is known
        answer = ask(server, "Hm?", **fields)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
        assert words in answer.json()["error"]["message"]
    assert ask(server, "Say something.", max_tokens=2).status_code == 200


class Address(pydantic.BaseModel):
    town: str = pydantic.Field(max_length=5)
    number: int = pydantic.Field(ge=1, le=99)


class Person(pydantic.BaseModel):
    name: str = pydantic.Field(max_length=5)
    mood: Literal["good", "bad"]
    addresses: list[Address] = pydantic.Field(min_length=1, max_length=1)
    nickname: str | None = pydantic.Field(max_length=5)


def test_the_sdk_parses_answers_into_models(server: Server) -> None:
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="-")
    completion = client.chat.completions.parse(
        model=MODEL, messages=[{"role": "user", "content": "Invent a person."}], response_format=Person, max_tokens=600
    )
    assert isinstance(completion.choices[0].message.parsed, Person)
    with client.chat.completions.stream(
        model=MODEL, messages=[{"role": "user", "content": "Invent one."}], response_format=Person, max_tokens=600
    ) as stream:
        last = stream.get_final_completion()
    assert isinstance(last.choices[0].message.parsed, Person)
