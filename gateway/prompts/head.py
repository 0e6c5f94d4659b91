"""The tokens that every request with a registered prompt begins with, whatever the user says and the slots hold."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
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
    rendered = [
        renderer.token_ids(_with_client(conversation, slots, probe), max_model_len=max_model_len) for probe in _PROBES
    ]
    shortest = min(len(tokens) for tokens in rendered)
    table = np.stack([tokens[:shortest] for tokens in rendered])
    differing = np.flatnonzero((table != table[0]).any(axis=0))
    return PromptHead(table[0, : int(differing[0]) if len(differing) else shortest].copy())


def _with_client(conversation: Conversation, slots: Sequence[str], probe: str) -> Conversation:
    """Fill the slots and add the turn that comes next."""
    filled = fill(conversation, slots, dict.fromkeys(slots, probe))
    role = "assistant" if filled.messages[-1].role == "user" else "user"
    return replace(filled, messages=(*filled.messages, Message(role, probe)))
