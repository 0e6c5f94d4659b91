"""Tools on the real model, which never learned to call any: the grammar makes it."""

from __future__ import annotations

import json
from typing import Any

import anthropic
import openai
import pytest

from tests.support.server import Server

pytestmark = pytest.mark.model

MODEL = "smollm2-135m-instruct"
CITY = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 20},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
    },
    "required": ["city", "days"],
}
CLOCK = {"type": "object", "properties": {"zone": {"enum": ["UTC", "CET"]}}, "required": ["zone"]}
QUESTION = {"role": "user", "content": "What is the weather in Paris for the next 3 days?"}


def function(name: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "description": name, "parameters": schema}}


TOOLS = [function("weather", CITY), function("clock", CLOCK)]


def test_openai_forces_a_call_and_goes_on_from_its_result(server: Server) -> None:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        named: Any = {"type": "function", "function": {"name": "weather"}}
        asked: dict[str, Any] = {"model": MODEL, "messages": [QUESTION], "tools": TOOLS, "max_tokens": 150}
        choice = client.chat.completions.create(**asked, tool_choice=named, temperature=0).choices[0]
        assert choice.finish_reason == "tool_calls"
        (call,) = choice.message.tool_calls
        arguments = json.loads(call.function.arguments)
        assert call.function.name == "weather"
        assert (type(arguments["city"]), arguments["days"] in range(1, 10)) == (str, True)
        required: dict[str, Any] = {**asked, "tool_choice": "required", "parallel_tool_calls": False}
        with client.chat.completions.stream(**required, temperature=1, seed=3) as events:
            final = events.get_final_completion().choices[0]
        assert final.finish_reason == "tool_calls"
        assert final.message.tool_calls[0].function.name in ("weather", "clock")
        json.loads(final.message.tool_calls[0].function.arguments)
        history = [QUESTION, choice.message.model_dump(exclude_none=True)]
        history.append({"role": "tool", "tool_call_id": call.id, "content": "Sunny, 21 degrees."})
        answer = client.chat.completions.create(**{**asked, "messages": history, "max_tokens": 12}, temperature=0)
        assert answer.choices[0].message.content
        assert answer.usage.prompt_tokens_details.cached_tokens > 100


def test_beside_a_format_the_answer_is_a_call_or_matches(server: Server) -> None:
    schema = {"type": "object", "properties": {"sunny": {"type": "boolean"}}, "required": ["sunny"]}
    form: Any = {"type": "json_schema", "json_schema": {"name": "sky", "schema": schema, "strict": True}}
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        asked: dict[str, Any] = {"model": MODEL, "messages": [QUESTION], "tools": TOOLS, "max_tokens": 150}
        message = client.chat.completions.create(**asked, response_format=form, temperature=0).choices[0].message
        assert message.tool_calls or set(json.loads(message.content)) == {"sunny"}
        strict = [{**tool, "function": {**tool["function"], "strict": True}} for tool in TOOLS]
        free = client.chat.completions.create(**{**asked, "tools": strict, "max_tokens": 12}, temperature=0)
        plain = client.chat.completions.create(**{**asked, "max_tokens": 12}, temperature=0)
    assert free.choices[0].message.content == plain.choices[0].message.content


def test_anthropic_forces_the_same_call(server: Server) -> None:
    tools = [
        {
            "name": one["function"]["name"],
            "description": one["function"]["description"],
            "input_schema": one["function"]["parameters"],
        }
        for one in TOOLS
    ]
    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0) as client:
        asked: dict[str, Any] = {"model": MODEL, "messages": [QUESTION], "tools": tools, "max_tokens": 150}
        choice: Any = {"type": "tool", "name": "weather"}
        with client.messages.stream(**asked, tool_choice=choice, extra_body={"temperature": 0}) as events:
            answer = events.get_final_message()
    assert answer.stop_reason == "tool_use"
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        named: Any = {"type": "function", "function": {"name": "weather"}}
        twin = client.chat.completions.create(
            model=MODEL, messages=[QUESTION], tools=TOOLS, tool_choice=named, temperature=0, max_tokens=150
        )
    (use,) = answer.content
    assert use.input == json.loads(twin.choices[0].message.tool_calls[0].function.arguments)
    assert twin.usage.prompt_tokens == answer.usage.input_tokens + (
        answer.usage.cache_creation_input_tokens + answer.usage.cache_read_input_tokens
    )
