"""The loads that every side gets: the same words, the same number of chats at a time, the same forced length.

Loads nothing but the standard library: peers read it in environments of their own.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

SYSTEM_WORDS = 900
"""About 1,000 tokens for SmolLM2."""
USER_WORDS = 40
_NOUNS = (
    "ticket booking hotel garden kitchen engine bicycle library student lecture museum concert bakery harbour island "
    "bridge station platform luggage passport blanket lantern basket orchard meadow valley summit glacier"
)
_VERBS = "opens moves keeps brings finds paints repairs borrows carries offers counts measures returns answers"
_QUALITIES = "early quiet narrow yellow wooden careful gentle heavy distant modern hollow bright usual second"


@dataclass(frozen=True, slots=True)
class Chat:
    """One conversation of two messages."""

    system: str
    user: str

    @property
    def messages(self) -> list[dict[str, str]]:
        """As a chat endpoint takes them."""
        return [{"role": "system", "content": self.system}, {"role": "user", "content": self.user}]


@dataclass(frozen=True, slots=True)
class Load:
    """A closed loop: as one chat ends the next one starts."""

    name: str
    what: str
    num_chats: int
    concurrency: int
    max_tokens: int
    """Of each answer; no side may end one earlier."""
    system_words: int = SYSTEM_WORDS
    shared: bool = True
    """All chats have one system prompt; else each its own."""

    def chats(self, round_number: int) -> list[Chat]:
        """Return the chats of a round: equal for all sides, and of no round's words twice."""
        shared = _prose(f"{self.name} {round_number}", self.system_words)
        return [
            Chat(
                shared if self.shared else _prose(f"{self.name} {round_number} {index}", self.system_words),
                f"Question {index}: {_prose(f'{round_number} {index}', USER_WORDS)}",
            )
            for index in range(self.num_chats)
        ]


LOADS = {
    load.name: load
    for load in (
        Load("shared", "16 chats share a 900-word system prompt, 8 at a time, 64 tokens each", 16, 8, 64),
        Load("wide", "the same, 16 at a time, 256 tokens each", 16, 16, 256),
        Load(
            "unique", "16 chats of the same shape that share nothing, 8 at a time, 64 tokens", 16, 8, 64, shared=False
        ),
        Load("single", "one chat of a short prompt, 256 tokens", 1, 1, 256, system_words=20),
    )
}


def _prose(seed: str, num_words: int) -> str:
    """Words in the order of sentences, the same for the same seed."""
    rng = random.Random(seed)
    nouns, verbs, qualities = _NOUNS.split(), _VERBS.split(), _QUALITIES.split()
    words: list[str] = []
    while len(words) < num_words:
        words += ["the", rng.choice(qualities), rng.choice(nouns), rng.choice(verbs), rng.choice(nouns)]
    return " ".join(words[:num_words])
