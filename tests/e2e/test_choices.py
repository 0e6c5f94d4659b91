"""Several answers of the real model, by OpenAI's SDK: the prompt is computed once, and a seed gives them again."""

from __future__ import annotations

import httpx
import openai
import pytest

from tests.support.server import Server

pytestmark = pytest.mark.model

MODEL = "smollm2-135m-instruct"
RULES = "You keep the log of a lighthouse. Write short lines, name the wind and the sea, and never guess. " * 8


def prompt_tokens(server: Server) -> tuple[float, float]:
    """Prompt tokens so far, and those of them that came from the cache."""
    lines = dict(line.rsplit(" ", 1) for line in httpx.get(f"{server.url}/metrics").text.splitlines() if line[0] != "#")
    return float(lines["prefixgate_prompt_tokens_total"]), float(lines["prefixgate_cached_tokens_total"])


def test_three_answers_share_a_prompt_and_a_seed_gives_them_again(server: Server) -> None:
    messages = [{"role": "system", "content": RULES}, {"role": "user", "content": "Write the line of this morning."}]
    asked = {"model": MODEL, "messages": messages, "n": 3, "seed": 11, "temperature": 1.0, "max_tokens": 16}
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        before = prompt_tokens(server)
        first = client.chat.completions.create(**asked)
        total, cached = (now - then for now, then in zip(prompt_tokens(server), before, strict=True))
        assert first.usage.prompt_tokens == total
        assert first.usage.prompt_tokens_details.cached_tokens == cached < total / 2
        texts = [choice.message.content for choice in first.choices]
        assert len(set(texts)) == 3
        assert 3 <= first.usage.completion_tokens <= 3 * 16
        again = [client.chat.completions.create(**asked) for _ in range(2)]
        assert all(answer.usage.prompt_tokens_details.cached_tokens > total / 2 for answer in again)
        second, third = ([choice.message.content for choice in answer.choices] for answer in again)
        assert second == third
        other = client.chat.completions.create(**{**asked, "seed": 12})
        assert {choice.message.content for choice in other.choices} != set(second)

        streamed = {0: "", 1: "", 2: ""}
        for chunk in client.chat.completions.create(**asked, stream=True):
            for choice in chunk.choices:
                streamed[choice.index] += choice.delta.content or ""
        assert list(streamed.values()) == second


def test_several_prompts_with_log_probabilities(server: Server) -> None:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        answer = client.completions.create(
            model=MODEL,
            prompt=["One, two,", "Monday, Tuesday,"],
            n=2,
            temperature=0,
            max_tokens=4,
            logprobs=2,
            echo=True,
        )
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    for number, choice in enumerate(answer.choices):
        assert choice.text.startswith(("One, two,", "Monday, Tuesday,")[number // 2])
        assert "".join(choice.logprobs.tokens) == choice.text
        assert choice.logprobs.text_offset[-1] == len(choice.text) - len(choice.logprobs.tokens[-1])
    assert answer.choices[0].text == answer.choices[1].text
