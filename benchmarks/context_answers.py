"""What the real model answers to whole chats, to their last turns, and to what the context policy leaves of them."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

import httpx

from benchmarks.context_chats import Chat, make_chats
from benchmarks.context_policies import NoPolicy, Ours, Policy, SlidingWindow
from benchmarks.context_replay import Share
from gateway.chat_request import conversation_of
from gateway.context.policy import ContextPolicy
from gateway.conversation import Conversation
from gateway.rendering import PromptRenderer
from gateway.tokenizer import Tokenizer
from tests.support.server import Server

_WINDOW = 2048
"""Of the policies; a whole chat may have as much as the model takes."""
_MODEL_WINDOW = 8192
_PER_CHAT = 3
_MAX_TOKENS = 24


def answers(seed: int, renderer: PromptRenderer, tokenizer: Tokenizer) -> None:
    """Ask a sample of late questions, greedily, and print the share of answers that have the span in them."""
    policies: list[tuple[str, Policy, int]] = [
        ("whole chat", NoPolicy(renderer), _MODEL_WINDOW),
        ("sliding window", SlidingWindow(renderer), _WINDOW),
        ("ours", Ours(renderer, tokenizer, ContextPolicy(), "ours"), _WINDOW),
    ]
    asked = [entry for chat in make_chats(seed, _WINDOW, 2) for entry in _sample(chat, policies[0][1])]
    print(f"\nanswers of the model to {len(asked)} late questions, window {_WINDOW:,}, {_MAX_TOKENS} tokens each")
    print(f"{'':16}{'mean prompt':>12}{'in prompt':>11}{'in answer':>11}")
    with Server() as server, httpx.Client(base_url=server.url, timeout=300) as client:
        model = client.get("/v1/models").json()["data"][0]["id"]
        for name, policy, window in policies:
            there, said, num_tokens = Share(), Share(), 0
            for conversation, answer in asked:
                sent = policy.prompt(conversation, window)
                if sent is None:
                    sys.exit(f"{name} refuses a question of the sample")
                body = {"model": model, "prompt": sent.prompt.token_ids.tolist(), "max_tokens": _MAX_TOKENS}
                response = client.post("/v1/completions", json={**body, "temperature": 0}).raise_for_status()
                there.add(answer in sent.prompt.text)
                said.add(answer in response.json()["choices"][0]["text"])
                num_tokens += len(sent.prompt.token_ids)
            print(f"{name:16}{num_tokens / len(asked):12,.0f}{there.rate:11.2f}{said.rate:11.2f}", flush=True)


def _sample(chat: Chat, whole: Policy) -> Sequence[tuple[Conversation, str]]:
    """Take some of the last questions of a chat that the model can still be asked with all of it."""
    return list(_fitting(chat, whole))[-_PER_CHAT:]


def _fitting(chat: Chat, whole: Policy) -> Iterator[tuple[Conversation, str]]:
    for turn, questions in chat.questions.items():
        conversation = conversation_of({"model": "", "messages": chat.messages[:turn]})
        if whole.prompt(conversation, _MODEL_WINDOW) is not None:
            yield from ((conversation, question.answer) for question in questions if question.is_late)
