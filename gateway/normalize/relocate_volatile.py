"""Text that is another one in every request moves from the head, where it spoils all that follows, behind the history.

Nothing is deleted: in its place stays a name that is always the same, and what the name stands for is stated after the
newest turn of the user, whose own words stay byte for byte. It is stated once per turn: while the model works through
its tool calls nothing can stand behind their results, so a clock keeps the time of the user's turn. Text that moves is
read as part of the user's turn and not of the system's.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

import orjson

from gateway import checks
from gateway.conversation import Content, Conversation, Message, text_part
from gateway.normalize.head_memo import HeadMemo, join_head, split_head
from gateway.normalize.moved_text import MovedHead, Mover, move_from_head
from gateway.normalize.params import string, strings
from gateway.normalize.recollection import digest_of
from gateway.normalize.rule import Apply, Context, Params, Rule, RuleClass, refuse_others
from gateway.normalize.statements import Statements
from gateway.normalize.tags import find_blocks
from gateway.normalize.volatile_kinds import KINDS, LIVE_KINDS
from gateway.normalize.volatile_patterns import Finder, finder

_PARAMS = ("patterns", "tags", "kinds")
_MAX_PATTERNS = 32
_MAX_HEAD_BYTES = 32 << 20
_INTRODUCTION = "Values that the instructions refer to:"


def relocate_volatile() -> Rule:
    """Move declared text behind the history, and state it again where it was stated earlier in the conversation.

    Parameters: `patterns` (regular expressions), `tags` (names of blocks, which move whole), `kinds` (see
    `volatile_kinds`). The slots of a registered prompt need none: their marks stay as the names. Where no user has
    spoken there is nowhere to state anything, and nothing moves. In audit mode, without parameters, it looks for clocks,
    ids and counters on its own.
    """
    memo = HeadMemo[tuple[MovedHead, bytes]](_MAX_HEAD_BYTES)

    def build(params: Params) -> Apply:
        refuse_others(params, _PARAMS)
        movers, declared = _movers(params), orjson.dumps(dict(params))

        def moved(head: Conversation) -> tuple[MovedHead, bytes]:
            result = move_from_head(head, movers)
            messages = [(message.role, message.content) for message in result.head.messages]
            return result, digest_of("head", [messages, result.head.tools])

        def apply(conversation: Conversation, context: Context) -> Conversation:
            turns = _places(conversation)
            if not turns:
                return conversation
            head, rest = split_head(conversation)
            result, digest = memo.know((declared, context.scope), head, moved)
            slots = {"{{" + name + "}}": value for name, value in context.open_slots.items()}
            values = {**result.values, **slots}
            if not values or _says(conversation.messages[turns[-1]], values):
                return conversation
            changed = join_head(result.head, rest) if result.values else conversation
            return _stated(changed, turns, values, digest, context)

        return apply

    return Rule("relocate_volatile", 1, RuleClass.OPT_IN, build, audit_params={"kinds": list(LIVE_KINDS)})


def has_place_for_values(conversation: Conversation) -> bool:
    """Whether a user has spoken, behind whose words values can be stated."""
    return bool(_places(conversation))


def _places(conversation: Conversation) -> list[int]:
    return [index for index, message in enumerate(conversation.messages) if message.role == "user"]


def _movers(params: Params) -> list[Mover]:
    """Read what shall move, blocks first: a clock in one moves with it."""
    tags, kinds = strings(params, "tags"), strings(params, "kinds")
    patterns = checks.sequence("params.patterns", params.get("patterns", []), most=_MAX_PATTERNS)
    movers = [Mover(tag, _block_finder(tag)) for tag in tags]
    movers += [Mover("value", finder(f"params.patterns[{index}]", pattern)) for index, pattern in enumerate(patterns)]
    for index, kind in enumerate(kinds):
        pattern = KINDS[string(f"params.kinds[{index}]", kind, tuple(KINDS))]
        movers.append(Mover(kind, _kind_finder(pattern)))
    return movers


def _block_finder(tag: str) -> Finder:
    return lambda text: ((block.start, block.end) for block in find_blocks(text, [tag]))


def _kind_finder(pattern: re.Pattern[str]) -> Finder:
    return lambda text: (match.span() for match in pattern.finditer(text))


def _stated(
    conversation: Conversation, turns: list[int], values: Mapping[str, str], head: bytes, context: Context
) -> Conversation:
    text = "\n".join([_INTRODUCTION, *_lines(values)])
    stated: Mapping[int, str] | None = None
    if context.memory is None:
        stated = {len(turns) - 1: text}
    else:
        statements = Statements(context.memory, head, conversation, turns)
        works_on = turns[-1] < len(conversation.messages) - 1
        stated = (statements.same_turn(values) if works_on else None) or statements.next_turn(values, text)
    messages = list(conversation.messages)
    for turn, statement in stated.items():
        place = turns[turn]
        messages[place] = _with_statement(messages[place], statement)
    return replace(conversation, messages=tuple(messages))


def _lines(values: Mapping[str, str]) -> list[str]:
    return [f"[{name}] {value}" for name, value in values.items()]


def _says(message: Message, values: Mapping[str, str]) -> bool:
    """Whether the values are stated already, among others."""
    if not isinstance(message.content, tuple) or message.content[-1]["type"] != "text":
        return False
    text: str = message.content[-1]["text"]
    return text.startswith(_INTRODUCTION) and text.endswith("\n".join(_lines(values)))


def _with_statement(message: Message, statement: str) -> Message:
    content: Content = message.content
    own = content if isinstance(content, tuple) else (text_part(content or ""),)
    return replace(message, content=(*own, text_part(statement)))
