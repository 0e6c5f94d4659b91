"""The tokens that every request with a registered prompt begins with, whatever the user says and the slots hold."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from gateway.conversation import Conversation, Message
from gateway.prompts.slots import fill
from gateway.rendering import PromptRenderer
from gateway.tokenizer import TokenArray

_PROBES = ("a", "7 ", "\n", " ")
"""Texts that share nothing and join differently with what stands before them, so that the renderings part where a text
of the client's begins to matter."""


@dataclass(frozen=True, slots=True, eq=False)
class PromptHead:
    """A stable prefix."""

    token_ids: TokenArray
    """[num_tokens], int32."""

    @property
    def sha256(self) -> str:
        """Hex digest of the tokens as little-endian int32: the prompt's identity, safe to store."""
        return hashlib.sha256(self.token_ids.astype("<i4").tobytes()).hexdigest()

    def num_blocks(self, block_size: int) -> int:
        """Full blocks: what can be cached and pinned."""
        return len(self.token_ids) // block_size


def prompt_head(
    conversation: Conversation, slots: Sequence[str], renderer: PromptRenderer, *, max_model_len: int | None = None
) -> PromptHead:
    """Render the prompt with the words of different clients and keep what is equal.

    Args:
        conversation: canonical, with the slots' marks in it.
        slots: their names.
        renderer: of the served model.
        max_model_len: a text that is too long for it in any case is not tokenized.

    Raises: InvalidRequestError: the model's template refuses the prompt; ContextLengthError: it is far too long.
    """
    renderer.check(conversation)
    chats = map(renderer.fit_head, _with_clients(conversation, slots))
    rendered = [renderer.token_ids(chat, max_model_len=max_model_len) for chat in chats]
    shortest = min(len(tokens) for tokens in rendered)
    table = np.stack([tokens[:shortest] for tokens in rendered])
    differing = np.flatnonzero((table != table[0]).any(axis=0))
    return PromptHead(table[0, : int(differing[0]) if len(differing) else shortest].copy())


def _with_clients(conversation: Conversation, slots: Sequence[str]) -> Iterator[Conversation]:
    """Fill the slots and add what comes next: a turn, or, where none was spoken yet, a client's own instructions."""
    role = "assistant" if conversation.messages[-1].role == "user" else "user"
    said = [(Message(role, probe),) for probe in _PROBES]
    for probe, turns in zip(_PROBES, said, strict=True):
        yield _before(fill(conversation, slots, dict.fromkeys(slots, probe)), turns)
    if conversation.num_head_messages == len(conversation.messages):
        filled = fill(conversation, slots, dict.fromkeys(slots, _PROBES[0]))
        yield _before(filled, (Message("system", _PROBES[0]), *said[0]))


def _before(conversation: Conversation, messages: Sequence[Message]) -> Conversation:
    return replace(conversation, messages=(*conversation.messages, *messages))
