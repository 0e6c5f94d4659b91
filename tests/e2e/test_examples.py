"""The examples that any model can follow, against the real one."""

from __future__ import annotations

import re

import pytest

from tests.support.examples import run_examples, run_shell_example
from tests.support.real_model import MODEL
from tests.support.server import Server

pytestmark = pytest.mark.model


def test_openai_anthropic_and_curl(server: Server) -> None:
    names = (
        "openai_chat.py",
        "openai_streaming.py",
        "openai_responses.py",
        "openai_structured.py",
        "anthropic_messages.py",
    )
    printed = run_examples(*names, url=server.url, model=MODEL)
    assert "Paris" in printed["openai_chat.py"]
    assert "tokens, the first after" in printed["openai_streaming.py"]
    assert "Paris" in printed["anthropic_messages.py"]
    assert "prompt tokens came from the cache" in printed["openai_responses.py"]
    assert re.fullmatch(r".+, \d{4}, (runs|stands still)\n", printed["openai_structured.py"])
    assert "[DONE]" in run_shell_example("curl.sh", url=server.url, model=MODEL)
