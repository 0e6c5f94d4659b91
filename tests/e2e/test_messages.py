"""One conversation through three endpoints and both providers' SDKs on the real model."""

from __future__ import annotations

import anthropic
import httpx
import openai
import pytest

from tests.support.server import Server

pytestmark = pytest.mark.model

MODEL = "smollm2-135m-instruct"
SYSTEM = "You are the friendly guide of a small museum of clocks, and answer in one short sentence. " * 4
QUESTION = "Name the capital of France."


def test_a_conversation_has_the_same_tokens_and_the_same_cache_everywhere(server: Server) -> None:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        first = client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "system", "content": SYSTEM}, {"role": "user", "content": QUESTION}],
            temperature=0,
            max_tokens=30,
        )
        third = client.responses.create(
            model=MODEL, instructions=SYSTEM, input=QUESTION, temperature=0, max_output_tokens=30
        )
    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0) as client:
        asked = {"model": MODEL, "system": SYSTEM, "messages": [{"role": "user", "content": QUESTION}]}
        greedy = {"temperature": 0}  # the SDK has no argument for it any more
        second = client.messages.create(**asked, max_tokens=30, extra_body=greedy)
        counted = client.messages.count_tokens(**asked)
        with client.messages.stream(**asked, max_tokens=30, extra_body=greedy) as stream:
            streamed = stream.get_final_message()
    usage = second.usage
    num_prompt_tokens = usage.input_tokens + usage.cache_creation_input_tokens + usage.cache_read_input_tokens
    assert num_prompt_tokens == first.usage.prompt_tokens == counted.input_tokens
    assert usage.cache_read_input_tokens > num_prompt_tokens // 2
    assert second.content[0].text == streamed.content[0].text == first.choices[0].message.content
    assert usage.output_tokens == first.usage.completion_tokens
    assert third.output_text == first.choices[0].message.content
    assert third.usage.input_tokens == num_prompt_tokens
    assert third.usage.input_tokens_details.cached_tokens > num_prompt_tokens // 2


def test_a_prompt_written_by_hand_shares_the_cache_of_the_chat(server: Server) -> None:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": "Which one is oldest?"}]
        tokens = httpx.post(f"{server.url}/tokenize", json={"messages": messages}).json()["tokens"]
        chat = client.chat.completions.create(model=MODEL, messages=messages, temperature=0, max_tokens=12)
        plain = client.completions.create(model=MODEL, prompt=tokens, temperature=0, max_tokens=12)
    assert plain.usage.prompt_tokens == chat.usage.prompt_tokens == len(tokens)
    assert plain.usage.prompt_tokens_details.cached_tokens > len(tokens) // 2
    assert plain.choices[0].text == chat.choices[0].message.content
