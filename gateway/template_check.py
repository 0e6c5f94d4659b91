"""Whether a chat template lets a prefix cache work: tried with chats, not read from its source.

A template that prints a date, changes earlier turns when a new one comes, or moves its tools along with the last turn
makes every prompt new, and no rule for requests can mend that.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from gateway.errors import InvalidRequestError
from gateway.template import ChatTemplate

logger = logging.getLogger(__name__)

Chat = list[dict[str, Any]]
_Kind = tuple[Chat, Sequence[Mapping[str, Any]]]

_MORNING = datetime(2001, 2, 3, 4, 5, 6)
_EVENING = datetime(2001, 2, 3, 21, 35, 46)
_OTHER_DAY = datetime(2034, 11, 26, 4, 5, 6)
_SEEDS = range(8)

_SYSTEM = {"role": "system", "content": "Zqsystem. You answer briefly and in plain words."}
_THOUGHT = "Zqthought, so the answer is short."


@dataclass(frozen=True, slots=True)
class TemplateVerdict:
    """What was found. None: the template refused the chats that would have shown it."""

    prompt_kept: float | None
    """Smallest share of a prompt that is still a prefix of the next turn's; 1: all of it."""
    tool_prompt_kept: float | None
    """The same over rounds of tool calls."""
    answer_kept: float | None
    """Smallest share of an answer's characters that the next prompt repeats where they were written; blanks beside it
    do not count."""
    clock: str | None
    """`none`, `date`, or `time` where it changes within a day."""
    clock_in: tuple[str, ...]
    """Kinds of chats that have it."""
    is_random: bool | None
    """Two renderings of one chat differ by chance."""
    reasoning: str | None
    """`kept` or `dropped` in earlier turns, when it is part of the content."""
    tool_place: str | None
    """`ignored`, `head` (before the first turn of the user), or `last_turn` (moves along with the chat)."""
    tool_order_shows: bool | None
    key_order_shows: bool | None

    @property
    def is_stable(self) -> bool:
        """Whether a chat that goes on can find its own prompts in the cache."""
        shares = (self.prompt_kept, self.tool_prompt_kept)
        return self.clock in ("none", None) and not self.is_random and all(share in (1, None) for share in shares)

    def shown(self) -> dict[str, Any]:
        """Give all findings as plain values."""
        return {"is_stable": self.is_stable, **asdict(self), "sentences": list(self.sentences())}

    def sentences(self) -> Iterator[str]:
        """Say in plain words what costs cache hits, and what to do about it; nothing where nothing does."""
        if self.prompt_kept is None and self.clock is None:
            yield "It refused every chat that it was tried with, so nothing is known of it."
        if self.clock in ("date", "time"):
            often = "with every request" if self.clock == "time" else "every day"
            chats = " and ".join(self.clock_in)
            yield f"It prints the {self.clock} in chats {chats}: they change {often}; write a fixed value into the template."
        if self.is_random:
            yield "It prints something random: no prompt is ever found again."
        if self.prompt_kept is not None and self.prompt_kept < 1:
            yield (
                f"A new turn changes what stood before it (as little as {self.prompt_kept:.0%} of a prompt is kept): "
                "only what stands before the change is found again."
            )
        if self.tool_prompt_kept is not None and self.tool_prompt_kept < min(1, self.prompt_kept or 1):
            yield f"Over rounds of tool calls as little as {self.tool_prompt_kept:.0%} of a prompt is kept."
        if self.tool_place == "last_turn":
            yield "It prints the tools with the last turn, so they move as the chat goes on."
        if self.answer_kept is not None and self.answer_kept < 1:
            yield "Answers are not repeated as they were written: the last exchange is computed again each turn."
        if self.reasoning == "dropped":
            yield "It drops the reasoning of earlier turns: an answer behind reasoning is computed again in the next turn."


def check_template(source: str, special_tokens: Mapping[str, str]) -> TemplateVerdict:
    """Try a template.

    Args:
        source: Jinja; it must compile.
        special_tokens: names that it may write -> their texts.

    Raises: ChatTemplateError: it does not compile.
    """
    world = _World()
    template = ChatTemplate(source, special_tokens=special_tokens, now=lambda: world.now, chance=world.chance)
    tools = [_tool("zqlook", "Zqlooks something up."), _tool("zqsend", "Zqsends a message.")]
    plain, rounds = _growing(template, _plain_chat(), []), _growing(template, _tool_chat(), tools)
    kinds = _kinds(tools)
    clock, clock_in = _clock(template, world, kinds)
    return TemplateVerdict(
        prompt_kept=_prompt_kept(plain),
        tool_prompt_kept=_prompt_kept(rounds),
        answer_kept=_answer_kept(plain),
        clock=clock,
        clock_in=tuple(clock_in),
        is_random=_is_random(template, world, kinds),
        reasoning=_reasoning(template),
        tool_place=_tool_place(template, tools),
        tool_order_shows=_differ(_rendered(template, _user_chat(), [tools, tools[::-1]])),
        key_order_shows=_differ(_rendered(template, _user_chat(), [tools, [_turned(tool) for tool in tools]])),
    )


def log_verdict(verdict: TemplateVerdict) -> None:
    """Say at the start what the template costs: as a warning where a chat cannot find its own prompts again."""
    level = logging.INFO if verdict.is_stable else logging.WARNING
    for sentence in verdict.sentences():
        logger.log(level, "the model's chat template: %s", sentence)


class _World:
    """What a template can see beside its chat."""

    def __init__(self) -> None:
        self.now = _MORNING
        self.chance = random.Random(0)  # noqa: S311 -- nothing secret


@dataclass(frozen=True, slots=True)
class _Step:
    """A prompt, and the answer to it."""

    prompt: str
    answer: str


def _growing(template: ChatTemplate, chat: Chat, tools: Sequence[Mapping[str, Any]]) -> list[_Step]:
    """Render a chat up to each of its answers; without system text or with tools where the template wants that."""
    for messages, with_tools in ((chat, tools), (chat[1:], tools), (chat, _SOME_TOOLS), (chat[1:], _SOME_TOOLS)):
        answers = [index for index, message in enumerate(messages) if message["role"] == "assistant"]
        try:
            return [
                _Step(template.render(messages[:index], with_tools), messages[index]["content"]) for index in answers
            ]
        except InvalidRequestError:
            continue
    return []


def _prompt_kept(steps: Sequence[_Step]) -> float | None:
    if not steps or not steps[0].prompt:
        return None
    return min(len(_common(one.prompt, two.prompt)) / len(one.prompt) for one, two in itertools.pairwise(steps))


def _answer_kept(steps: Sequence[_Step]) -> float | None:
    if not steps:
        return None
    shares = []
    for one, two in itertools.pairwise(steps):
        is_kept = two.prompt.startswith(one.prompt)
        rest = two.prompt[len(one.prompt) :].lstrip() if is_kept else ""
        shares.append(len(_common(one.answer, rest)) / len(one.answer))
    return min(shares)


def _clock(template: ChatTemplate, world: _World, kinds: Mapping[str, _Kind]) -> tuple[str | None, list[str]]:
    """Render at several times: two of one day, another day, and now.

    Returns: how often the prompts change, and the kinds of chats that do.
    """

    def at(now: datetime) -> dict[str, str]:
        world.now = now
        world.chance.seed(0)
        return _each(template, kinds)

    morning, evening, other, today = at(_MORNING), at(_EVENING), at(_OTHER_DAY), at(datetime.now())
    if not morning:
        return None, []
    timed = [kind for kind in morning if morning[kind] != evening.get(kind)]
    dated = [kind for kind in morning if not morning[kind] == other.get(kind) == today.get(kind)]
    found = timed or dated
    return ("time" if timed else "date" if dated else "none"), found if len(found) < len(morning) else ["of all kinds"]


def _is_random(template: ChatTemplate, world: _World, kinds: Mapping[str, _Kind]) -> bool | None:
    world.now = _MORNING
    rendered = []
    for seed in _SEEDS:
        world.chance.seed(seed)
        rendered.append(_each(template, kinds))
    return any(other != rendered[0] for other in rendered) if rendered[0] else None


def _each(template: ChatTemplate, kinds: Mapping[str, _Kind]) -> dict[str, str]:
    """Render a chat of each kind that the template takes."""
    rendered = {}
    for kind, (chat, tools) in kinds.items():
        with contextlib.suppress(InvalidRequestError):
            rendered[kind] = template.render(chat, tools)
    return rendered


def _kinds(tools: Sequence[Mapping[str, Any]]) -> dict[str, _Kind]:
    chat = _user_chat()
    return {
        "with system text": (chat, []),
        "without system text": (chat[1:], []),
        "with system text and tools": (chat, tools),
        "with tools and no system text": (chat[1:], tools),
    }


def _reasoning(template: ChatTemplate) -> str | None:
    said = {"role": "assistant", "content": f"<think>\n{_THOUGHT}\n</think>\n\nZqanswer."}
    chat = [*_user_chat(), said, _user("And then?")]
    rendered = _rendered(template, chat, [[]])
    if not rendered:
        return None
    return "kept" if _THOUGHT in rendered[0] else "dropped"


def _tool_place(template: ChatTemplate, tools: Sequence[Mapping[str, Any]]) -> str | None:
    chat = [*_user_chat(), {"role": "assistant", "content": "Zqanswer."}, _user("Zqlater, and then?")]
    rendered = _rendered(template, chat, [tools])
    if not rendered:
        return None
    tool, turn = rendered[0].find("zqlook"), rendered[0].find("Zqquestion")
    if tool < 0:
        return "ignored"
    # Tools behind the first question are those of a last turn, unless they stand there whatever comes later.
    return "last_turn" if tool > rendered[0].find("Zqanswer") > turn else "head"


def _rendered(template: ChatTemplate, chat: Chat, tool_lists: Sequence[Sequence[Mapping[str, Any]]]) -> list[str]:
    """Render one chat with several lists of tools; without system text where the template wants that."""
    for messages in (chat, chat[1:]):
        try:
            return [template.render(messages, tools) for tools in tool_lists]
        except InvalidRequestError:
            continue
    return []


def _differ(rendered: Sequence[str]) -> bool | None:
    return len(set(rendered)) > 1 if rendered else None


def _common(one: str, two: str) -> str:
    return os.path.commonprefix([one, two])  # noqa: RUF071 -- of characters


def _user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def _user_chat() -> Chat:
    return [_SYSTEM, _user("Zqquestion: what is it?")]


def _plain_chat() -> Chat:
    turns = [
        turn
        for index in range(4)
        for turn in (
            _user(f"Question {index}: what is it?"),
            {"role": "assistant", "content": f"Answer {index}: it is."},
        )
    ]
    return [_SYSTEM, *turns]


def _tool_chat() -> Chat:
    rounds = [turn for index in range(3) for turn in _tool_round(index)]
    end = [{"role": "assistant", "content": "Found it."}, _user("And then?"), {"role": "assistant", "content": "No."}]
    return [_SYSTEM, _user("Look it up, please."), *rounds, *end]


def _tool_round(index: int) -> Chat:
    call = {
        "id": f"zqcall{index:03d}",
        "type": "function",
        "function": {"name": "zqlook", "arguments": {"what": f"thing {index}"}},
    }
    return [
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": call["id"], "name": "zqlook", "content": f"Result {index} of the search."},
    ]


def _tool(name: str, description: str) -> dict[str, Any]:
    parameters = {
        "type": "object",
        "properties": {
            "what": {"type": "string", "description": "What it is about."},
            "where": {"type": "string", "description": "Where it is."},
        },
        "required": ["what"],
    }
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


_SOME_TOOLS = (_tool("zqlook", "Zqlooks something up."),)


def _turned(value: Any, *, are_names: bool = False) -> Any:
    """Turn the order of all keys round, but not that of parameters, which somebody chose."""
    if isinstance(value, dict):
        keys = value if are_names else reversed(value)
        return {key: _turned(value[key], are_names=key == "properties" and not are_names) for key in keys}
    return [_turned(entry) for entry in value] if isinstance(value, list) else value
