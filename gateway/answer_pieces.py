"""What an answer is made of: text, thoughts, and calls of tools, as pieces of a stream or gathered into a whole."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from gateway.logprobs import Entry


@dataclass(frozen=True, slots=True)
class Text:
    """More text, never an empty one."""

    text: str
    logprobs: Sequence[Entry] | None = None
    """Of its tokens; None: not asked for."""


@dataclass(frozen=True, slots=True)
class Thought:
    """More of the reasoning before the text."""

    text: str


@dataclass(frozen=True, slots=True)
class CallStart:
    """A call begins."""

    index: int
    """Of the call in the answer."""
    call_id: str
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """More of a call's arguments: a fragment of JSON."""

    index: int
    fragment: str


Piece = Text | Thought | CallStart | CallArguments


@dataclass(frozen=True, slots=True)
class AnswerEnd:
    """What is known when an answer is over."""

    finish_reason: str
    """`stop`, `length` or `tool_calls`."""
    stop: str | None
    """The stop string that ended it."""
    num_tokens: int
    """Generated."""
    logprobs: Sequence[Entry] | None = None
    """Of the tokens that no text was printed for; None: not asked for."""


@dataclass(slots=True)
class Call:
    """A whole call."""

    call_id: str
    name: str
    arguments: str = ""
    """JSON."""


@dataclass(slots=True)
class WholeAnswer:
    """All of one answer."""

    end: AnswerEnd
    text: str = ""
    thought: str = ""
    calls: list[Call] = field(default_factory=list)
    late_text: str = ""
    """The end of the text: what was said behind a call."""
    logprobs: list[Entry] | None = None
    """Of all its tokens; None: not asked for."""

    def as_text(self) -> str:
        """Print it for people to read: its text, and each call as JSON on a line of its own."""
        calls = [f'{{"name": {json.dumps(call.name)}, "arguments": {call.arguments}}}' for call in self.calls]
        return "\n".join([*([self.text] if self.text or not calls else []), *calls])


def gather(pieces: Iterable[Piece], end: AnswerEnd) -> WholeAnswer:
    """Put an answer together."""
    texts: list[str] = []
    late_texts: list[str] = []
    thoughts: list[str] = []
    calls: dict[int, Call] = {}
    logprobs: list[Entry] = []
    for piece in pieces:
        match piece:
            case Text():
                (late_texts if calls else texts).append(piece.text)
                logprobs += piece.logprobs or ()
            case Thought():
                thoughts.append(piece.text)
            case CallStart():
                calls[piece.index] = Call(piece.call_id, piece.name)
            case CallArguments():
                calls[piece.index].arguments += piece.fragment
    return WholeAnswer(
        end,
        "".join(texts + late_texts),
        "".join(thoughts),
        [calls[index] for index in sorted(calls)],
        "".join(late_texts),
        None if end.logprobs is None else [*logprobs, *end.logprobs],
    )
