"""What Anthropic's SDK asks of a server."""

from __future__ import annotations

import contextlib

import anthropic
import pytest

from tests.support.served import CALL, MAX_TOKENS, TOOL, Served


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
    assert 0 < usage.output_tokens <= MAX_TOKENS


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


def message_tool_use(served: Served) -> None:
    served.say(CALL, "It is open.")
    function = TOOL["function"]
    tool = {"name": function["name"], "input_schema": function["parameters"]}
    asked = served.message(tools=[tool], max_tokens=100, extra_body={"temperature": 0})
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
