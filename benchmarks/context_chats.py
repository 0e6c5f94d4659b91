"""Long chats with facts in them that are asked for at once and much later; the same seed gives the same chats.

Three families: *documents* that a user pastes or a tool returns, one of them longer than the window; *talk*, where facts
are told in passing; *agents*, whose tools return a lot. What is asked is asked once, so that no answer of the assistant
tells what a later question asks for.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from benchmarks.context_facts import ANSWERED, CODE, LOGS, MIXED, PROSE, TABLES, TOLD, Fact, Form
from benchmarks.context_texts import SEPARATORS, Writer

Json = dict[str, Any]
Kind = Literal["document", "turn", "quote"]
"""Where an answer stands: in a document or a tool's result, in what was said, or in whatever a later turn quotes."""

CHARS_PER_TOKEN = 2.5
"""Of these texts, about."""
_SYSTEM = (
    "You help the people of a small town's building office, and you may call tools.\nAnswer in one sentence, from what "
    "you were told or shown. Name the sum, the person, the date or the code that you are asked for, as it is written. "
    "If you were not told, say so.\n"
)
_FORMS: Mapping[str, Sequence[Form]] = {"prose": PROSE, "mixed": MIXED, "code": CODE, "log": LOGS, "table": TABLES}
_KINDS = tuple(SEPARATORS)
_NUM_DOCUMENTS = 8
_FACTS_OF_DOCUMENT = 4
_NUM_EXCHANGES = 90
_NUM_TOLD = 28
_NUM_TASKS = 8
_CALLS_OF_TASK = (3, 5)
_TALK_CHARS = 1 / 8000
"""Of a window: small talk is longer where documents are."""


@dataclass(frozen=True)
class Question:
    """What the request that ends with a message needs of what stands before it."""

    answer: str
    kind: Kind
    is_late: bool
    """Much was said in between."""


@dataclass
class Chat:
    """What a client sends piece by piece: a request before each turn of the assistant."""

    family: str
    tools: Sequence[Json] = ()
    messages: list[Json] = field(default_factory=lambda: [{"role": "system", "content": _SYSTEM}])
    questions: dict[int, list[Question]] = field(default_factory=dict)
    """By the place of the assistant's turn that answers."""

    @property
    def turns(self) -> list[int]:
        """Places of the assistant's turns."""
        return [index for index, message in enumerate(self.messages) if message["role"] == "assistant"]


def make_chats(seed: int, window: int, num: int) -> list[Chat]:
    """Make chats of each family that grow to three or four windows.

    Args:
        seed: of all of them.
        window: in tokens.
        num: of each family.
    """
    chats = []
    for family, make in _FAMILIES.items():
        for number in range(num):
            rng = random.Random(f"{seed}/{family}/{number}/{window}")
            chats.append(make(_Builder(Chat(family), Writer(rng), CHARS_PER_TOKEN * window)))
    return chats


class _Builder:
    """Writes one chat down."""

    def __init__(self, chat: Chat, writer: Writer, window_chars: int) -> None:
        self.chat = chat
        self.writer = writer
        self.rng = writer.rng
        self.window_chars = window_chars

    def say(self, num_chars: int, *facts: str) -> str:
        """Make small talk with something in it, so long where a window has 8,000 characters."""
        pieces = self.writer.document("prose", int(num_chars * self.window_chars * _TALK_CHARS))
        for fact in facts:
            pieces.insert(self.rng.randint(0, len(pieces)), fact + " ")
        return "".join(pieces).strip()

    def user(self, text: str) -> None:
        self.chat.messages.append({"role": "user", "content": text})

    def answer(self, text: str) -> None:
        self.chat.messages.append({"role": "assistant", "content": text})

    def call(self, tool: str, subject: str, result: str) -> None:
        """Let the assistant look something up."""
        number = len(self.chat.messages)
        function = {"name": tool, "arguments": json.dumps({"name": subject})}
        calls = [{"id": f"call_{number}", "type": "function", "function": function}]
        said = {"role": "assistant", "content": f"I call {tool} for {subject}.", "tool_calls": calls}
        self.chat.messages += [said, {"role": "tool", "tool_call_id": f"call_{number}", "content": result}]

    def expect(self, fact: Fact, kind: Kind, *, is_late: bool) -> None:
        """Answer what was asked in the last turn."""
        question = Question(fact.answer, kind, is_late)
        self.chat.questions.setdefault(len(self.chat.messages), []).append(question)
        self.answer(f"It is {fact.answer}. " + self.say(60))

    def ask(self, fact: Fact, kind: Kind, *, is_late: bool) -> None:
        """Ask in a turn of its own."""
        opening = self.rng.choice(("", "", "One more thing: ", "Let me ask you this. ", "Back to something else. "))
        self.user(opening + fact.question)
        self.expect(fact, kind, is_late=is_late)

    def facts(self, forms: Sequence[Form], num: int) -> list[Fact]:
        return [self.rng.choice(forms).make(self.writer) for _ in range(num)]

    def text(self, kind: str, share: float, facts: Sequence[Fact]) -> str:
        """Write a document of this share of the window, with facts and what is like them in it."""
        pieces = self.writer.document(kind, int(share * self.window_chars))
        for scrap in [scrap for fact in facts for scrap in (fact.text, *fact.distractors)]:
            pieces.insert(self.rng.randint(0, len(pieces)), scrap + SEPARATORS[kind])
        return "".join(pieces).strip()


def _documents(builder: _Builder) -> Chat:
    rng = builder.rng
    kinds = [_KINDS[number % len(_KINDS)] for number in range(_NUM_DOCUMENTS)]
    rng.shuffle(kinds)
    shares = [rng.uniform(0.1, 0.5) for _ in kinds]
    shares[rng.randrange(2, len(shares))] = 1.3
    facts = [builder.facts(_FORMS[kind], _FACTS_OF_DOCUMENT) for kind in kinds]
    late: list[Fact] = []
    for number, (kind, share, (first, second, *others)) in enumerate(zip(kinds, shares, facts, strict=True)):
        text, name = builder.text(kind, share, facts[number]), f"{kind} {number}"
        if rng.random() < 0.5:
            builder.user(f"Please read this {name}.\n\n{text}\n\n{first.question}")
        else:
            builder.user(f"Please open the file {name}. {first.question}")
            builder.call("open_file", name, text)
        builder.expect(first, "document", is_late=False)
        builder.ask(second, "document", is_late=False)
        rng.shuffle(late)
        for _ in range(min(len(late), rng.randint(1, 3))):
            builder.ask(late.pop(), "document", is_late=True)
        builder.user(builder.say(150))
        builder.answer(builder.say(300))
        late += others
    for fact in late[: 2 * _FACTS_OF_DOCUMENT]:
        builder.ask(fact, "document", is_late=True)
    return builder.chat


def _talk(builder: _Builder) -> Chat:
    rng = builder.rng
    told = {turn: rng.choice(TOLD).make(builder.writer) for turn in rng.sample(range(_NUM_EXCHANGES - 35), _NUM_TOLD)}
    by_assistant = {turn: ANSWERED.make(builder.writer) for turn in rng.sample(range(_NUM_EXCHANGES - 35), 4)}
    scraps: dict[int, list[str]] = {turn: [] for turn in range(_NUM_EXCHANGES)}
    asked: dict[int, list[Fact]] = {turn: [] for turn in range(_NUM_EXCHANGES)}
    for turn, fact in [*told.items(), *by_assistant.items()]:
        asked[rng.randint(turn + 25, _NUM_EXCHANGES - 1)].append(fact)
        for distractor in fact.distractors:
            scraps[rng.randrange(_NUM_EXCHANGES)].append(distractor)
    for turn in range(_NUM_EXCHANGES):
        own = [told[turn].text] if turn in told else []
        said = [by_assistant[turn].text] if turn in by_assistant else []
        builder.user(builder.say(130, *own, *scraps[turn]))
        builder.answer(builder.say(200, *said))
        for fact in asked[turn]:
            builder.ask(fact, "turn", is_late=True)
    return builder.chat


def _agent(builder: _Builder) -> Chat:
    rng = builder.rng
    tasks = [[rng.choice(_KINDS) for _ in range(rng.randint(*_CALLS_OF_TASK))] for _ in range(_NUM_TASKS)]
    facts = [[builder.facts(_FORMS[kind], 1) for kind in kinds] for kinds in tasks]
    late: list[Fact] = []
    for kinds, hidden in zip(tasks, facts, strict=True):
        builder.user("Please look into this next. " + builder.say(100))
        for kind, found in zip(kinds, hidden, strict=True):
            subject = builder.writer.any("service")
            builder.call(f"find_{kind}", subject, builder.text(kind, rng.uniform(0.03, 0.15), found))
        builder.answer(builder.say(250))
        builder.ask(rng.choice(hidden)[0], "document", is_late=False)
        asked = builder.chat.questions[builder.chat.turns[-1]][0].answer
        rng.shuffle(late)
        for _ in range(min(len(late), 2)):
            builder.ask(late.pop(), "document", is_late=True)
        late += [fact for (fact,) in hidden if fact.answer != asked]
    for fact in late[:6]:
        builder.ask(fact, "document", is_late=True)
    return builder.chat


_FAMILIES: Mapping[str, Callable[[_Builder], Chat]] = {"documents": _documents, "talk": _talk, "agents": _agent}
