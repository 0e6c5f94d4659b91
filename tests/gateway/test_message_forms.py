"""Messages of every form that clients send are taken."""

from __future__ import annotations

import pytest

from gateway.model_files import ModelFiles
from tests.gateway.conftest import open_client
from tests.gateway.support.fake_backend import FakeBackend
from tests.gateway.test_bad_input import PATH, USER, calls, chat


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": role, "content": "hi"} for role in ("system", "developer", "user", "assistant")],
        [USER, {"role": "assistant", "content": None, "tool_calls": [], "refusal": None}],
        [{"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": "{}"}}]}],
        [calls('{"a":' * 64 + "1" + "}" * 64)],
        [calls("{" * 500)],
        [calls('{"a": "' + "{" * 500 + '"}')],
        [USER, {"role": "tool", "tool_call_id": "1", "content": [{"type": "text", "text": "4"}]}],
        [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}],
        [{"role": "user", "content": "", "name": "me"}],
    ],
)
async def test_messages_of_every_form_are_taken(
    backend: FakeBackend, model_files: ModelFiles, messages: list[object]
) -> None:
    backend.max_model_len = 4096
    async with open_client(backend, model_files, tool_template="hermes") as client:
        assert (await client.post(PATH, json=chat(messages=messages))).status_code == 200
