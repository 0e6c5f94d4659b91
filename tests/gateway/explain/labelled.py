"""Sixty misses of our own making, each with the answer: what happened, where, and which characters differ.

A token is a character, and a prompt is written like a chat, so that what a case changes is what an explanation must show.
The cache is the real one; how a case comes about is its label.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from engine.messages import EngineReady
from gateway.backends.control import HashedPrompt
from gateway.backends.local.earlier_lives import EarlierLives
from gateway.explain.places import Place, place_of
from prefixcache import Explanation, PrefixCache, PrefixCacheConfig, Prompt, Reason, Scope, hash_blocks, namespace

R = Reason
BLOCK = 16


@dataclass(frozen=True)
class Span:
    owner: str
    start: int
    end: int


@dataclass(frozen=True)
class Chat:
    """A request; a turn is (role, text)."""

    system: str
    turns: tuple[tuple[str, str], ...]
    tools: tuple[str, ...] = ()
    date: str = ""
    """Printed by the template."""

    @property
    def roles(self) -> list[str]:
        return ["system", *(role for role, _ in self.turns)]

    def pieces(self) -> Iterator[tuple[str, str]]:
        """(owner, text), as a chat template would print them."""
        yield "template", f"<s>{self.date}[tools]"
        for number, tool in enumerate(self.tools):
            yield f"tools[{number}]", tool
            yield "template", "\n"
        for number, (role, text) in enumerate([("system", self.system), *self.turns]):
            yield "template", f"<{role}>"
            yield f"messages[{number}]", text
            yield "template", "</>\n"

    @property
    def text(self) -> str:
        return "".join(text for _, text in self.pieces())

    @property
    def spans(self) -> list[Span]:
        spans, end = [], 0
        for owner, text in self.pieces():
            spans.append(Span(owner, end, end + len(text)))
            end += len(text)
        return spans

    def cut(self, num_tokens: int) -> CutChat:
        return CutChat(self.system, self.turns, self.tools, self.date, num_tokens)


@dataclass(frozen=True)
class CutChat(Chat):
    """A chat of which only the first characters are sent."""

    num_tokens: int = 0

    @property
    def text(self) -> str:
        return super().text[: self.num_tokens]


class CharDecoder:
    def decode(self, token_ids) -> str:
        return "".join(map(chr, token_ids))


class Bench:
    """A cache, who sends what to it, and what is remembered of its earlier lives."""

    def __init__(self, num_blocks: int = 200, **settings: object) -> None:
        defaults = {"block_size": BLOCK, "max_shared_ratio": 1.0, "growth_reserve": 0}
        self._settings = defaults | settings
        self._num_blocks = num_blocks
        self._lives = EarlierLives()
        self._epoch = 0
        self.restart()

    def restart(self) -> None:
        self._epoch += 1
        config = PrefixCacheConfig(
            self._num_blocks,
            hash_seed=self._epoch,
            hash_epoch=self._epoch,
            **self._settings,  # type: ignore[arg-type]
        )
        self._cache = PrefixCache(config)
        self._lives.begin(
            EngineReady("", "", 1, BLOCK, self._num_blocks, self._epoch, self._epoch, {"model": "m"}, [], 1, [])
        )

    def send(self, chat: Chat, *, tenant: str = "a", holds: bool = False, computes: bool = True) -> Explanation:
        """Admit a chat; it ends at once unless it `holds` its blocks."""
        prompt, hashed = self._prompt(chat, tenant)
        with self._cache.match(prompt) as match:
            allocation = self._cache.admit(match, max_new_tokens=0)
        assert allocation is not None
        self._lives.note(hashed)
        if computes:
            self._cache.commit(allocation.table, allocation.table.num_tokens)
        if not holds:
            self._cache.free(allocation.table)
        return self._cache.reveal(prompt, allocation.explanation)

    def _prompt(self, chat: Chat, tenant: str) -> tuple[Prompt, HashedPrompt]:
        ids = np.array([ord(char) for char in chat.text], dtype=np.int32)
        scopes = (Scope(namespace({"model": "m"}, scope=f"tenant:{tenant}"), 0),)
        hashes = hash_blocks(ids, block_size=BLOCK, scopes=scopes, seed=self._epoch)
        wire = [(scope.namespace, scope.num_blocks) for scope in scopes]
        hashed = HashedPrompt(token_ids=ids, block_hashes=hashes, scopes=wire, hash_epoch=self._epoch)
        earlier = self._lives.num_blocks(hashed)
        return Prompt(ids, hashes, scopes, self._epoch, num_earlier_blocks=earlier), hashed


@dataclass(frozen=True)
class Answer:
    """What an explanation says."""

    reason: Reason
    owner: str | None = None
    prompt: str = ""
    """Begins so, where it differs; empty: nothing differs."""
    cached: str = ""


@dataclass(frozen=True)
class Miss:
    """One case: what was sent before, what is asked about, and the answer."""

    name: str
    make: Callable[[], tuple[Bench, Chat]] = field(repr=False)
    answer: Answer
    send: dict[str, object] = field(default_factory=dict)

    def explain(self) -> tuple[Explanation, Place | None]:
        bench, chat = self.make()
        explanation = bench.send(chat, **self.send)  # type: ignore[arg-type]
        differs = explanation.diverging_token is not None
        return explanation, place_of(chat.spans, explanation.num_common_tokens, chat.roles) if differs else None


SYSTEM = "You work for the harbour office. Ships are named in capitals. Answer in one line, and never guess a berth."
TOOLS = (
    '{"name": "berths", "description": "Lists the free berths of a quay."}',
    '{"name": "tides", "description": "High and low water of a day."}',
    '{"name": "weather", "description": "Wind and sight at a place."}',
)
TURNS = (
    ("user", "Which berths are free for the MARIE on the north quay?"),
    ("assistant", 'berths({"quay": "north", "ship": "MARIE"})'),
    ("tool", '["N2", "N4", "N7"] as of the last call of the harbour master'),
    ("assistant", "N2, N4 and N7 are free for the MARIE on the north quay."),
    ("user", "And when is high water there, please?"),
)
BASE = Chat(SYSTEM, TURNS, TOOLS, date="1 May.")


def turn(number: int, text: str, base: Chat = BASE) -> Chat:
    turns = list(base.turns)
    turns[number] = (turns[number][0], text)
    return replace(base, turns=tuple(turns))


def swap(text: str, old: str, new: str) -> str:
    assert text.count(old) == 1, (text, old)
    return text.replace(old, new)


def after(*chats: Chat, **settings: object) -> Callable[[Chat], Callable[[], tuple[Bench, Chat]]]:
    """Send some chats, then ask about another one."""

    def asked(chat: Chat) -> Callable[[], tuple[Bench, Chat]]:
        def make() -> tuple[Bench, Chat]:
            bench = Bench(**settings)  # type: ignore[arg-type]
            for earlier in chats:
                bench.send(earlier)
            return bench, chat

        return make

    return asked


def filler(number: int, size: int = 30 * BLOCK) -> Chat:
    return Chat(chr(200 + number) * size, ())
