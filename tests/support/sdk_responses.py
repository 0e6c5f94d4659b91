"""The part of the SDK suite that asks at `/v1/responses`."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import openai
import pytest

if TYPE_CHECKING:
    from tests.support.sdk_suite import Served


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
    assert 0 < answer.usage.output_tokens <= served.response()["max_output_tokens"]
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
