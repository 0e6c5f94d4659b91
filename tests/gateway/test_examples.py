"""The examples of the documentation, run as users run them, against an echo engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from gateway.model_files import ModelFiles
from tests.gateway.support.echo_server import EchoServer, echo_server
from tests.support.examples import FOLDER, run_example

REPLY = "hello world, over the lazy dog"


@pytest.fixture(scope="module")
def server(model_files: ModelFiles, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EchoServer]:
    with echo_server(model_files, tmp_path_factory.mktemp("echo")) as server:
        yield server


@pytest.fixture(scope="module")
def key(server: EchoServer) -> str:
    return server.new_key("everyone")


@pytest.fixture
def printed(server: EchoServer, key: str) -> Callable[[str], str]:
    return lambda name: run_example(name, url=server.url, model="tiny", api_key=key)


def test_openai_chat(printed: Callable[[str], str]) -> None:
    lines = printed("openai_chat.py").splitlines()
    assert lines[0] == "Name the capital of France."
    assert lines[1].strip() == lines[4].strip() == REPLY
    assert not lines[5].strip().startswith("0 of")


def test_openai_streaming(printed: Callable[[str], str]) -> None:
    text, count = printed("openai_streaming.py").splitlines()
    assert text == REPLY
    assert "tokens, the first after 0." in count


def test_anthropic_messages(printed: Callable[[str], str]) -> None:
    lines = printed("anthropic_messages.py").splitlines()
    assert lines[1:3] == [f"answer: {REPLY}", f"streamed: {REPLY}"]
    assert lines[3].startswith("prompt tokens from the cache: ")
    assert not lines[3].endswith(" 0")


def test_curl(printed: Callable[[str], str]) -> None:
    text = printed("curl.sh")
    assert "x-prefixgate-cache: cached=" in text
    assert "data: [DONE]" in text
    assert '"object":"text_completion"' in text


def test_every_example_is_short() -> None:
    assert {path.name for path in FOLDER.iterdir() if len(path.read_text().splitlines()) > 60} <= {"README.md"}
