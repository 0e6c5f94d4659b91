"""What the providers' real SDKs ask of a server, whichever it is: an echo engine, a real model, a proxy in front of others.

Each check is a plain function of a `Served`, blocking, without a word about what a model says. A test module serves
something, says what it can do and runs `checks_for` it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

import anthropic
import openai
import pytest

MESSAGES: list[Any] = [
    {"role": "system", "content": "You are the friendly guide of a small museum of clocks."},
    {"role": "user", "content": "Name the capital of France."},
]
_ENDS = {"stop", "length"}
_MAX_TOKENS = 24


class Part(Enum):
    """What a server may be able to do beside chats through OpenAI's SDK."""

    COMPLETIONS = auto()
    ANTHROPIC = auto()
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
    say: Callable[[str], None] | None = None
    """Has an echo engine answer with a text from now on; None: a model says what it likes."""

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
    message: frozenset({Part.ANTHROPIC}),
    message_comes_from_the_cache: frozenset({Part.ANTHROPIC}),
    message_stream: frozenset({Part.ANTHROPIC}),
    message_errors: frozenset({Part.ANTHROPIC, Part.CHECKS}),
    message_wrong_key: frozenset({Part.ANTHROPIC, Part.KEYS}),
    message_limit: frozenset({Part.ANTHROPIC, Part.KEYS}),
}


def checks_for(*parts: Part) -> list[Any]:
    """Give the checks for a server that can do so much, as parameters of a test."""
    return [pytest.param(check, id=check.__name__) for check, needs in _NEEDS.items() if needs <= set(parts)]
