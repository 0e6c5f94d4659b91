"""Tools through the providers' real SDKs, on a backend that says what is written here."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import anthropic
import openai
import pytest

from gateway.app import create_app
from gateway.model_files import ModelFiles
from gateway.settings import Settings
from gateway.tokenizer import Tokenizer
from tests.gateway.support.scripted import ScriptedBackend
from tests.gateway.support.server import running
from tests.gateway.tools.test_calls import OTHER, SCHEMA, TOOL, TWO, USER

ASK: dict[str, Any] = {"model": "tiny", "messages": [USER], "tools": [TOOL, OTHER]}
MESSAGE: dict[str, Any] = {
    "model": "tiny",
    "max_tokens": 400,
    "messages": [USER],
    "tools": [{"name": "look", "input_schema": SCHEMA}, {"name": "stop", "input_schema": {"type": "object"}}],
}
SAID = "Let me look.\n" + TWO


@pytest.fixture
def backend(tokenizer: Tokenizer) -> ScriptedBackend:
    return ScriptedBackend(tokenizer, SAID)


@pytest.fixture
async def url(backend: ScriptedBackend, model_files: ModelFiles) -> AsyncIterator[str]:
    settings = Settings(tool_template="hermes")  # type: ignore[call-arg]
    async with running(create_app(settings, backend, model_files)) as port:
        yield f"http://127.0.0.1:{port}"


def calls_of(message: Any) -> list[tuple[str, str]]:
    return [(call.function.name, call.function.arguments) for call in message.tool_calls]


async def test_openai(url: str) -> None:
    wanted = [("look", '{"at": 5}'), ("stop", "{}")]

    def work() -> None:
        with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
            choice = client.chat.completions.create(**ASK).choices[0]
            assert (choice.finish_reason, choice.message.content) == ("tool_calls", "Let me look.")
            assert calls_of(choice.message) == wanted
            with client.chat.completions.stream(**ASK) as events:
                kinds = [event.type for event in events]
                final = events.get_final_completion().choices[0]
            assert kinds.count("tool_calls.function.arguments.done") == 2
            assert kinds.count("tool_calls.function.arguments.delta") > 4
            assert calls_of(final.message) == wanted

    await asyncio.to_thread(work)
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        async with client.chat.completions.stream(**ASK) as events:
            final = (await events.get_final_completion()).choices[0]
        assert (final.finish_reason, calls_of(final.message)) == ("tool_calls", wanted)


async def test_openai_responses(url: str) -> None:
    tools = [
        {"type": "function", "name": "look", "parameters": SCHEMA},
        {"type": "function", "name": "stop", "parameters": {"type": "object"}},
    ]
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        answer = await client.responses.create(model="tiny", input="hi", tools=tools)
        calls = [(item.name, item.arguments) for item in answer.output if item.type == "function_call"]
        assert calls == [("look", '{"at": 5}'), ("stop", "{}")]
        async with client.responses.stream(model="tiny", input="hi", tools=tools) as events:
            final = await events.get_final_response()
        assert [item.type for item in final.output] == ["message", "function_call", "function_call"]


async def test_anthropic(url: str) -> None:
    wanted = [("look", {"at": 5}), ("stop", {})]

    def work() -> None:
        with anthropic.Anthropic(base_url=url, api_key="none", max_retries=0) as client:
            answer = client.messages.create(**MESSAGE)
            assert answer.stop_reason == "tool_use"
            assert [(block.name, block.input) for block in answer.content if block.type == "tool_use"] == wanted
            with client.messages.stream(**MESSAGE) as events:
                kinds = [event.type for event in events]
                final = events.get_final_message()
            assert kinds.count("input_json") > 4
            assert [(block.name, block.input) for block in final.content if block.type == "tool_use"] == wanted

    await asyncio.to_thread(work)
    async with anthropic.AsyncAnthropic(base_url=url, api_key="none", max_retries=0) as client:
        async with client.messages.stream(**MESSAGE) as events:
            final = await events.get_final_message()
        assert (final.stop_reason, final.content[1].input) == ("tool_use", {"at": 5})
