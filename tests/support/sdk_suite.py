"""What the providers' real SDKs ask of a server, whichever it is: an echo engine, a real model, a proxy in front of others.

Each check is a plain function of a `Served`, blocking, without a word about what a model says. A test module serves
something, says what it can do and runs `checks_for` it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable
from typing import Any

import openai
import pytest

from tests.support import sdk_anthropic
from tests.support.served import CALL, ENDS, MAX_TOKENS, MESSAGES, TOOL, TOOL_CHOICE, Clock, Part, Served


def chat(served: Served) -> None:
    with served.openai() as client:
        answer = client.chat.completions.create(**served.asked())
    choice, usage = answer.choices[0], answer.usage
    assert (answer.object, answer.model, choice.message.role) == ("chat.completion", served.model, "assistant")
    assert choice.message.content
    assert choice.finish_reason in ENDS
    assert 0 < usage.completion_tokens <= MAX_TOKENS
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
    assert next(c.choices[0].finish_reason for c in chunks if c.choices and c.choices[0].finish_reason) in ENDS


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


def response(served: Served) -> None:
    with served.openai() as client:
        answer = client.responses.create(**served.response())
        chat = client.chat.completions.create(**served.asked())
        again = client.responses.create(
            **served.response(
                input=[{"role": "user", "content": "Hi."}, *answer.output, {"role": "user", "content": "?"}]
            )
        )
    assert (answer.object, answer.model, answer.error) == ("response", served.model, None)
    assert answer.status in {"completed", "incomplete"}
    assert answer.output_text
    assert answer.usage.input_tokens == chat.usage.prompt_tokens
    assert 0 < answer.usage.output_tokens <= MAX_TOKENS
    assert again.usage.input_tokens_details.cached_tokens > 0


def response_stream(served: Served) -> None:
    async def work() -> list[Any]:
        async with served.async_openai() as client:
            answer = await client.responses.create(**served.response(), stream=True)
            return [event async for event in answer]

    events = asyncio.run(work())
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert events[0].type == "response.created"
    assert events[-1].type in {"response.completed", "response.incomplete"}
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert text
    assert events[-1].response.output_text == text


def response_stream_helper(served: Served) -> None:
    asked = served.response(max_output_tokens=256)  # the helper raises where an answer is cut
    with served.openai() as client, client.responses.stream(**asked) as answer:
        assert answer.get_final_response().output_text


def response_errors(served: Served) -> None:
    with served.openai() as client:
        with pytest.raises(openai.BadRequestError, match="stores no responses") as caught:
            client.responses.create(**served.response(), previous_response_id="resp_1")
        assert caught.value.param == "previous_response_id"
        with pytest.raises(openai.NotFoundError):
            client.responses.create(**served.response(model="no-such-model"))


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
    sdk_anthropic.message: frozenset({Part.ANTHROPIC}),
    sdk_anthropic.message_tool_use: frozenset({Part.ANTHROPIC, Part.TOOLS}),
    sdk_anthropic.message_comes_from_the_cache: frozenset({Part.ANTHROPIC}),
    sdk_anthropic.message_stream: frozenset({Part.ANTHROPIC}),
    sdk_anthropic.message_errors: frozenset({Part.ANTHROPIC, Part.CHECKS}),
    sdk_anthropic.message_wrong_key: frozenset({Part.ANTHROPIC, Part.KEYS}),
    sdk_anthropic.message_limit: frozenset({Part.ANTHROPIC, Part.KEYS}),
}


def checks_for(*parts: Part) -> list[Any]:
    """Give the checks for a server that can do so much, as parameters of a test."""
    return [pytest.param(check, id=check.__name__) for check, needs in _NEEDS.items() if needs <= set(parts)]
