"""Plays chats through a policy, request by request, and counts what a prefix cache saves and which answers are sent."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b

import numpy as np

from benchmarks.context_chats import Chat
from benchmarks.context_policies import Policy, Sent
from gateway.chat_request import conversation_of
from gateway.rendering import PromptRenderer
from gateway.tokenizer import TokenArray, Tokenizer
from prefixcache.hashing import namespace
from prefixcache.interface import PrefixCacheConfig, Prompt, Scope
from prefixcache.shadow import ShadowIndex

BLOCK_SIZE = 16
_UNLIMITED = 1 << 18
_SCOPES = (Scope(namespace({}, scope="tenant:benchmark"), 0),)


@dataclass
class Share:
    """How many of how many."""

    num: int = 0
    of: int = 0

    def add(self, holds: bool) -> None:
        """Count one."""
        self.num += holds
        self.of += 1

    @property
    def rate(self) -> float:
        """From 0 to 1; 1 of nothing."""
        return self.num / self.of if self.of else 1.0


@dataclass
class Tally:
    """What one policy did with all chats."""

    num_requests: int = 0
    num_refused: int = 0
    whole_tokens: int = 0
    """Of all histories as they came: prompts if the window had no end."""
    prompt_tokens: int = 0
    hit_tokens: int = 0
    hit_tokens_small: int = 0
    """In a pool that does not hold all chats at once."""
    num_cuts: int = 0
    changed_prefixes: int = 0
    """Prompts that did not begin with the one before, with no cut in between."""
    found: dict[tuple[str, bool], Share] = field(default_factory=dict)
    """Questions whose answer is in the prompt, by where it stood and whether much was said since."""

    @property
    def prefill_tokens(self) -> int:
        """Computed in a pool without a limit."""
        return self.prompt_tokens - self.hit_tokens

    @property
    def prefill_tokens_small(self) -> int:
        """Computed in the small pool."""
        return self.prompt_tokens - self.hit_tokens_small

    @property
    def context_share(self) -> float:
        """Mean length of the prompts, of the mean length of all histories."""
        mean = self.prompt_tokens / max(1, self.num_requests - self.num_refused)
        return mean * self.num_requests / max(1, self.whole_tokens)

    def share(self, kind: str, *, is_late: bool | None = None) -> Share:
        """Count the questions of a kind whose answer is in the prompt; a refused request has none."""
        shares = [share for (of, late), share in self.found.items() if of == kind and is_late in (None, late)]
        return Share(sum(share.num for share in shares), sum(share.of for share in shares))


class Replay:
    """One policy's caches, and what it did so far.

    Args:
        policy: makes the prompts.
        renderer: of the same model.
        tokenizer: of the same model.
        window: tokens of a prompt and its answer.
        num_blocks: of the small pool.
    """

    def __init__(
        self, policy: Policy, renderer: PromptRenderer, tokenizer: Tokenizer, *, window: int, num_blocks: int
    ) -> None:
        self.tally = Tally()
        self._policy = policy
        self._renderer = renderer
        self._tokenizer = tokenizer
        self._window = window
        self._pools = [_pool(_UNLIMITED), _pool(num_blocks)]
        self._last: dict[int, list[bytes]] = {}
        """By chat: the digests of the last prompt's blocks, up to where its answer begins."""

    def play(self, chats: Sequence[Chat]) -> Tally:
        """Let all chats take turns, request by request."""
        for number, chat, turn in _order(chats):
            body = {"model": "benchmark", "messages": chat.messages[: turn + 1], "tools": list(chat.tools)}
            conversation = conversation_of(body)
            asked = replace(conversation, messages=conversation.messages[:-1])
            self.tally.whole_tokens += len(self._renderer.render(asked, tenant="").token_ids)
            sent = self._policy.prompt(asked, self._window)
            self._judge(chat, turn, sent)
            if sent is not None:
                self._serve(number, sent, str(conversation.messages[-1].content or ""))
        return self.tally

    def _judge(self, chat: Chat, turn: int, sent: Sent | None) -> None:
        self.tally.num_requests += 1
        self.tally.num_refused += sent is None
        text = sent.prompt.text if sent is not None and turn in chat.questions else ""
        for question in chat.questions.get(turn, ()):
            share = self.tally.found.setdefault((question.kind, question.is_late), Share())
            share.add(question.answer in text)

    def _serve(self, number: int, sent: Sent, answer: str) -> None:
        token_ids = sent.prompt.token_ids
        self.tally.prompt_tokens += len(token_ids)
        answer_ids = self._tokenizer.encode(answer)
        hits = [_serve(pool, token_ids, answer_ids) for pool in self._pools]
        self.tally.hit_tokens += hits[0]
        self.tally.hit_tokens_small += hits[1]
        if sent.is_cut is None:
            return
        digests, before = _digests(token_ids), self._last.get(number, [])
        if sent.is_cut:
            self.tally.num_cuts += 1
        elif digests[: len(before)] != before:
            self.tally.changed_prefixes += 1
        self._last[number] = digests[: max(0, len(token_ids) - _ENDING_TOKENS) // BLOCK_SIZE]


def _order(chats: Sequence[Chat]) -> Iterator[tuple[int, Chat, int]]:
    """A turn each."""
    for place in range(max(len(chat.turns) for chat in chats)):
        for number, chat in enumerate(chats):
            if place < len(chat.turns):
                yield number, chat, chat.turns[place]


def _pool(num_blocks: int) -> ShadowIndex[None]:
    return ShadowIndex[None](PrefixCacheConfig(num_blocks, block_size=BLOCK_SIZE, growth_reserve=0))


def _serve(pool: ShadowIndex[None], token_ids: TokenArray, answer_ids: TokenArray) -> int:
    """Look a prompt up and cache it with its answer; one that is larger than the pool finds nothing."""
    prompt = Prompt(token_ids, b"", _SCOPES, 0)
    hit = pool.serve(prompt, None)
    if hit is None:
        return 0
    pool.extend(prompt, answer_ids.tolist(), None)
    return hit.num_cached_tokens


_ENDING_TOKENS = 8
"""Where an answer begins, which is tokenized otherwise with some answers, as with calls."""


def _digests(token_ids: TokenArray) -> list[bytes]:
    """Of each full block, with all that stands before it."""
    hasher, digests = blake2b(digest_size=16), []
    for block in np.asarray(token_ids[: len(token_ids) // BLOCK_SIZE * BLOCK_SIZE]).reshape(-1, BLOCK_SIZE):
        hasher.update(block.tobytes())
        digests.append(hasher.digest())
    return digests
