"""What the providers' real SDKs ask of a server, whichever it is: an echo engine, a real model, a proxy in front of others.

Each check is a plain function of a `Served`, blocking, without a word about what a model says. A test module serves
something, says what it can do and runs `checks_for` it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

import anthropic
import openai
import pytest
from pydantic import BaseModel, Field

from tests.support.sdk_responses import response, response_errors, response_stream, response_stream_helper

MESSAGES: list[Any] = [
    {"role": "system", "content": "You are the friendly guide of a small museum of clocks."},
    {"role": "user", "content": "Name the capital of France."},
]
TOOL: Any = {
    "type": "function",
    "function": {
        "name": "opening_hours",
        "description": "When the museum is open.",
        "parameters": {
            "type": "object",
            "properties": {"day": {"enum": ["saturday", "sunday"]}},
            "required": ["day"],
            "additionalProperties": False,
        },
    },
}
TOOL_CHOICE: Any = {"type": "function", "function": {"name": "opening_hours"}}
CALL = '<tool_call>\n{"name": "opening_hours", "arguments": {"day": "sunday"}}\n</tool_call>'
"""As models write it that were trained on Hermes' form."""


class Clock(BaseModel):
    name: str = Field(max_length=20)
    year: int = Field(ge=1000, le=2000)


_ENDS = {"stop", "length"}
_MAX_TOKENS = 24


class Part(Enum):
    """What a server may be able to do beside chats through OpenAI's SDK."""

    COMPLETIONS = auto()
    ANTHROPIC = auto()
    RESPONSES = auto()
    TOOLS = auto()
    """It can be made to call a tool."""
    STRUCTURED = auto()
    """It can be held to a schema."""
    CHECKS = auto()
    """It refuses values out of bounds and other models than its own."""
    KEYS = auto()
    """It needs the key that it was given."""


@dataclass(frozen=True, slots=True)
class Served:
    """A server that runs."""

    url: str
    """Without `/v1`."""
    model: str
    api_key: str = "none"
    limited_key: str | None = None
    """Good for one request a minute; None: the server has no limits to try."""
    say: Callable[..., None] = lambda *texts: None
    """Has an echo engine give texts, each as one answer. A model says what it likes, within a grammar."""

    def openai(self, **options: Any) -> openai.OpenAI:
        """Connect, without retries."""
        return openai.OpenAI(**{"base_url": f"{self.url}/v1", "api_key": self.api_key, "max_retries": 0, **options})

    def async_openai(self) -> openai.AsyncOpenAI:
        """Connect, without retries."""
        return openai.AsyncOpenAI(base_url=f"{self.url}/v1", api_key=self.api_key, max_retries=0)

    def anthropic(self, **options: Any) -> anthropic.Anthropic:
        """Connect, without retries."""
        return anthropic.Anthropic(**{"base_url": self.url, "api_key": self.api_key, "max_retries": 0, **options})

    def asked(self, **fields: Any) -> dict[str, Any]:
        """The arguments of a short chat."""
        return {"model": self.model, "messages": MESSAGES, "max_tokens": _MAX_TOKENS, "temperature": 0, **fields}

    def message(self, **fields: Any) -> dict[str, Any]:
        """The same as Anthropic has it."""
        system, *turns = MESSAGES
        return {
            "model": self.model,
            "system": system["content"],
            "messages": turns,
            "max_tokens": _MAX_TOKENS,
            **fields,
        }

    def response(self, **fields: Any) -> dict[str, Any]:
        """The same as OpenAI's Responses have it."""
        system, *turns = MESSAGES
        asked = {"model": self.model, "instructions": system["content"], "input": turns, "temperature": 0}
        return {**asked, "max_output_tokens": _MAX_TOKENS, **fields}


def chat(served: Served) -> None:
    with served.openai() as client:
        answer = client.chat.completions.create(**served.asked())
    choice, usage = answer.choices[0], answer.usage
    assert (answer.object, answer.model, choice.message.role) == ("chat.completion", served.model, "assistant")
    assert choice.message.content
    assert choice.finish_reason in _ENDS
    assert 0 < usage.completion_tokens <= _MAX_TOKENS
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens


def chat_comes_from_the_cache(served: Served) -> None:
    with served.openai() as client:
        client.chat.completions.create(**served.asked())
        again = client.chat.completions.create(**served.asked())
    assert 0 < again.usage.prompt_tokens_details.cached_tokens < again.usage.prompt_tokens


def raw_answer_has_headers(served: Served) -> None:
    with served.openai() as client:
        raw = client.chat.completions.with_raw_response.create(**served.asked())
    assert raw.headers["x-request-id"]
    assert raw.parse().choices[0].message.content


def stream(served: Served) -> None:
    with served.openai() as client:
        chunks = list(client.chat.completions.create(**served.asked(), stream=True))
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}
    assert len({chunk.id for chunk in chunks}) == 1
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert next(c.choices[0].finish_reason for c in chunks if c.choices and c.choices[0].finish_reason) in _ENDS


def stream_with_usage(served: Served) -> None:
    async def work() -> list[Any]:
        async with served.async_openai() as client:
            options = {"include_usage": True}
            answer = await client.chat.completions.create(**served.asked(), stream=True, stream_options=options)
            return [chunk async for chunk in answer]

    *others, last = asyncio.run(work())
    assert last.choices == []
    assert last.usage.total_tokens == last.usage.prompt_tokens + last.usage.completion_tokens
    assert all(chunk.usage is None for chunk in others)


def stream_helper(served: Served) -> None:
    asked = served.asked(max_tokens=256)  # the helper raises where an answer is cut

    async def work() -> Any:
        async with served.async_openai() as client, client.chat.completions.stream(**asked) as answer:
            return await answer.get_final_completion()

    assert asyncio.run(work()).choices[0].message.content


def leaving_a_stream(served: Served) -> None:
    with served.openai() as client:
        with client.chat.completions.create(**served.asked(), stream=True) as answer:
            next(iter(answer))
        assert client.chat.completions.create(**served.asked()).choices[0].message.content


def models(served: Served) -> None:
    with served.openai() as client:
        assert served.model in [model.id for model in client.models.list()]


def one_model(served: Served) -> None:
    with served.openai() as client:
        assert client.models.retrieve(served.model).id == served.model
        with pytest.raises(openai.NotFoundError):
            client.models.retrieve("no-such-model")


def completion(served: Served) -> None:
    asked = {"model": served.model, "prompt": "The clock in the hall", "max_tokens": 8, "temperature": 0}
    with served.openai() as client:
        whole = client.completions.create(**asked)
        pieces = list(client.completions.create(**asked, stream=True))
    assert whole.object == pieces[0].object == "text_completion"
    assert whole.choices[0].text
    assert "".join(piece.choices[0].text for piece in pieces if piece.choices)
    assert whole.usage.completion_tokens <= 8


def bad_request(served: Served) -> None:
    with served.openai() as client:
        with pytest.raises(openai.BadRequestError, match="temperature") as caught:
            client.chat.completions.create(**served.asked(temperature=3))
        assert (caught.value.param, caught.value.type) == ("temperature", "invalid_request_error")
        with pytest.raises(openai.NotFoundError) as missed:
            client.chat.completions.create(**served.asked(model="no-such-model"))
        assert missed.value.code == "model_not_found"


def wrong_key(served: Served) -> None:
    with served.openai(api_key="wrong") as client, pytest.raises(openai.AuthenticationError) as caught:
        client.chat.completions.create(**served.asked())
    assert caught.value.code == "invalid_api_key"


def limit(served: Served) -> None:
    with served.openai(api_key=served.limited_key) as client:
        with contextlib.suppress(openai.RateLimitError):  # a check before may have taken the one that is allowed
            client.chat.completions.create(**served.asked())
        with pytest.raises(openai.RateLimitError) as caught:
            client.chat.completions.create(**served.asked())
    assert int(caught.value.response.headers["retry-after"]) > 0


def message(served: Served) -> None:
    with served.anthropic() as client:
        answer = client.messages.create(**served.message())
        counted = client.messages.count_tokens(**{k: v for k, v in served.message().items() if k != "max_tokens"})
    usage = answer.usage
    assert (answer.type, answer.role, answer.model) == ("message", "assistant", served.model)
    assert answer._request_id
    assert answer.content[0].text
    assert answer.stop_reason in {"end_turn", "max_tokens"}
    num_prompt_tokens = usage.input_tokens + usage.cache_creation_input_tokens + usage.cache_read_input_tokens
    assert num_prompt_tokens == counted.input_tokens
    assert 0 < usage.output_tokens <= _MAX_TOKENS


def message_comes_from_the_cache(served: Served) -> None:
    with served.anthropic() as client:
        client.messages.create(**served.message())
        assert client.messages.create(**served.message()).usage.cache_read_input_tokens > 0


def message_stream(served: Served) -> None:
    with served.anthropic() as client:
        kinds = [event.type for event in client.messages.create(**served.message(), stream=True)]
        with client.messages.stream(**served.message()) as answer:
            text = "".join(answer.text_stream)
            assert answer.get_final_message().content[0].text == text
    assert text
    assert [kinds[0], kinds[-2], kinds[-1]] == ["message_start", "message_delta", "message_stop"]
    assert "content_block_delta" in kinds


def message_errors(served: Served) -> None:
    with served.anthropic() as client:
        with pytest.raises(anthropic.BadRequestError, match="max_tokens") as caught:
            client.messages.create(**served.message(max_tokens=0))
        assert caught.value.body["error"]["type"] == "invalid_request_error"
        with pytest.raises(anthropic.NotFoundError):
            client.messages.create(**served.message(model="no-such-model"))


def message_wrong_key(served: Served) -> None:
    with served.anthropic(api_key="wrong") as client, pytest.raises(anthropic.AuthenticationError):
        client.messages.create(**served.message())


def message_limit(served: Served) -> None:
    with served.anthropic(api_key=served.limited_key) as client:
        with contextlib.suppress(anthropic.RateLimitError):  # a check before may have taken the one that is allowed
            client.messages.create(**served.message())
        with pytest.raises(anthropic.RateLimitError) as caught:
            client.messages.create(**served.message())
    assert int(caught.value.response.headers["retry-after"]) > 0


def tool_call(served: Served) -> None:
    served.say(CALL, "It is open.")
    asked = served.asked(tools=[TOOL], max_tokens=100)
    with served.openai() as client:
        called = client.chat.completions.create(**asked, tool_choice=TOOL_CHOICE).choices[0]
        call = called.message.tool_calls[0]
        assert set(json.loads(call.function.arguments)) == {"day"}
        result = {"role": "tool", "tool_call_id": call.id, "content": "10:00 to 18:00"}
        asked["messages"] = [*MESSAGES, called.message.model_dump(exclude_none=True), result]
        answer = client.chat.completions.create(**asked).choices[0].message
    assert (call.type, call.function.name) == ("function", "opening_hours")
    assert called.finish_reason in {"stop", "tool_calls"}
    assert answer.content or answer.tool_calls


def streamed_tool_call(served: Served) -> None:
    served.say(CALL)
    with served.openai() as client:
        asked = served.asked(tools=[TOOL], max_tokens=100)
        chunks = list(client.chat.completions.create(**asked, tool_choice=TOOL_CHOICE, stream=True))
    deltas = [call for chunk in chunks if chunk.choices for call in chunk.choices[0].delta.tool_calls or ()]
    assert {delta.index for delta in deltas} == {0}
    assert deltas[0].id
    assert deltas[0].function.name == "opening_hours"
    assert set(json.loads("".join(delta.function.arguments or "" for delta in deltas))) == {"day"}


def structured_output(served: Served) -> None:
    served.say('{"name": "Big Ben", "year": 1859}')
    with served.openai() as client:
        answer = client.chat.completions.parse(**served.asked(max_tokens=200), response_format=Clock)
    assert isinstance(answer.choices[0].message.parsed, Clock)


def response_with_tool_call(served: Served) -> None:
    served.say(CALL)
    tool = {"type": "function", "strict": False, **TOOL["function"]}
    with served.openai() as client:
        answer = client.responses.create(
            model=served.model,
            input=MESSAGES[1]["content"],
            tools=[tool],
            tool_choice={"type": "function", "name": "opening_hours"},
            max_output_tokens=100,
        )
    calls = [item for item in answer.output if item.type == "function_call"]
    assert calls[0].name == "opening_hours"
    assert set(json.loads(calls[0].arguments)) == {"day"}


def message_tool_use(served: Served) -> None:
    served.say(CALL, "It is open.")
    function = TOOL["function"]
    tool = {"name": function["name"], "input_schema": function["parameters"]}
    asked = served.message(tools=[tool], max_tokens=100)
    with served.anthropic() as client:
        called = client.messages.create(**asked, tool_choice={"type": "tool", "name": "opening_hours"})
        use = next(block for block in called.content if block.type == "tool_use")
        result = {"type": "tool_result", "tool_use_id": use.id, "content": "10:00 to 18:00"}
        asked["messages"] = [
            *asked["messages"],
            {"role": "assistant", "content": [block.model_dump(exclude_none=True) for block in called.content]},
            {"role": "user", "content": [result]},
        ]
        answer = client.messages.create(**asked)
    assert called.stop_reason == "tool_use"
    assert set(use.input) == {"day"}
    assert answer.content


Check = Callable[[Served], None]

_NEEDS: dict[Check, frozenset[Part]] = {
    chat: frozenset(),
    chat_comes_from_the_cache: frozenset(),
    raw_answer_has_headers: frozenset(),
    stream: frozenset(),
    stream_with_usage: frozenset(),
    stream_helper: frozenset(),
    leaving_a_stream: frozenset(),
    models: frozenset(),
    one_model: frozenset({Part.CHECKS}),
    completion: frozenset({Part.COMPLETIONS}),
    bad_request: frozenset({Part.CHECKS}),
    wrong_key: frozenset({Part.KEYS}),
    limit: frozenset({Part.KEYS}),
    response: frozenset({Part.RESPONSES}),
    response_stream: frozenset({Part.RESPONSES}),
    response_stream_helper: frozenset({Part.RESPONSES}),
    response_errors: frozenset({Part.RESPONSES, Part.CHECKS}),
    tool_call: frozenset({Part.TOOLS}),
    streamed_tool_call: frozenset({Part.TOOLS}),
    structured_output: frozenset({Part.STRUCTURED}),
    response_with_tool_call: frozenset({Part.RESPONSES, Part.TOOLS}),
    message: frozenset({Part.ANTHROPIC}),
    message_tool_use: frozenset({Part.ANTHROPIC, Part.TOOLS}),
    message_comes_from_the_cache: frozenset({Part.ANTHROPIC}),
    message_stream: frozenset({Part.ANTHROPIC}),
    message_errors: frozenset({Part.ANTHROPIC, Part.CHECKS}),
    message_wrong_key: frozenset({Part.ANTHROPIC, Part.KEYS}),
    message_limit: frozenset({Part.ANTHROPIC, Part.KEYS}),
}


def checks_for(*parts: Part) -> list[Any]:
    """Give the checks for a server that can do so much, as parameters of a test."""
    return [pytest.param(check, id=check.__name__) for check, needs in _NEEDS.items() if needs <= set(parts)]
