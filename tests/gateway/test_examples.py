"""The examples of the documentation, run as users run them, against an echo engine."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from gateway.model_files import ModelFiles
from tests.gateway.support.echo_server import EchoServer, echo_server
from tests.support.examples import FOLDER, run_examples, run_shell_example

REPLY = "hello world, over the lazy dog"


@pytest.fixture(scope="module")
def server(model_files: ModelFiles, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EchoServer]:
    with echo_server(model_files, tmp_path_factory.mktemp("echo")) as server:
        yield server


@pytest.fixture(scope="module")
def key(server: EchoServer) -> str:
    return server.new_key("everyone")


PLAIN = ("openai_chat.py", "openai_streaming.py", "openai_responses.py", "anthropic_messages.py")

SCRIPTED = ("openai_tools.py", "openai_structured.py", "langchain_agent.py")
"""The engine is told what to say."""


@pytest.fixture(scope="module")
def printed(server: EchoServer, key: str) -> dict[str, str]:
    """What the examples print that need nothing special."""
    return run_examples(*PLAIN, url=server.url, model="tiny", api_key=key)


def test_openai_chat(printed: dict[str, str]) -> None:
    lines = printed["openai_chat.py"].splitlines()
    assert lines[0] == "Name the capital of France."
    assert lines[1].strip() == lines[4].strip() == REPLY
    assert not lines[5].strip().startswith("0 of")


def test_openai_streaming(printed: dict[str, str]) -> None:
    text, count = printed["openai_streaming.py"].splitlines()
    assert text == REPLY
    assert "tokens, the first after 0." in count


def test_openai_responses(printed: dict[str, str]) -> None:
    lines = printed["openai_responses.py"].splitlines()
    assert lines[:2] == [REPLY, REPLY]
    assert lines[2].endswith("prompt tokens came from the cache")


def test_anthropic_messages(printed: dict[str, str]) -> None:
    lines = printed["anthropic_messages.py"].splitlines()
    assert lines[1:3] == [f"answer: {REPLY}", f"streamed: {REPLY}"]
    assert lines[3].startswith("prompt tokens from the cache: ")
    assert not lines[3].endswith(" 0")


def test_tools_structured_output_and_an_agent_that_loops_over_two_tools(server: EchoServer, key: str) -> None:
    prices = call("ticket_price", visitor="adult") + call("ticket_price", visitor="child")
    server.say(call("opening_hours", day="Sunday"), "It is open from 10 to 18.")
    server.say('{"name": "Old Tom", "year": 1788, "runs": true}')
    server.say(prices, call("add", first=12, second=5), "They pay 17 euros.")
    printed = run_examples(*SCRIPTED, url=server.url, model="tiny", api_key=key)
    assert printed["openai_structured.py"] == "Old Tom, 1788, runs\n"
    assert printed["openai_tools.py"].splitlines() == [
        'opening_hours({"day": "Sunday"}) -> 10:00 to 18:00',
        "It is open from 10 to 18.",
    ]
    assert printed["langchain_agent.py"].splitlines() == [
        "turn 1",
        "ticket_price({'visitor': 'adult'}) -> 12",
        "ticket_price({'visitor': 'child'}) -> 5",
        "turn 2",
        "add({'first': 12, 'second': 5}) -> 17",
        "turn 3",
        "They pay 17 euros.",
    ]


def test_curl(server: EchoServer, key: str) -> None:
    text = run_shell_example("curl.sh", url=server.url, model="tiny", api_key=key)
    assert "x-prefixgate-cache: cached=" in text
    assert "data: [DONE]" in text
    assert '"object":"text_completion"' in text


def test_every_example_is_short_and_known_here() -> None:
    names = {path.name for path in FOLDER.iterdir() if path.suffix in (".py", ".sh")}
    assert names == {*PLAIN, *SCRIPTED, "curl.sh"}
    assert all(len((FOLDER / name).read_text().splitlines()) <= 60 for name in names)


def call(name: str, **arguments: object) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"
