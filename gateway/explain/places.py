"""Which part of a request a token of its prompt came from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol


class Span(Protocol):
    """A region of a prompt, as the renderer finds them."""

    @property
    def owner(self) -> str:
        """`system`, `tools[2]`, `messages[3]`, `messages[3].content[1]` or `template`."""
        ...

    @property
    def start(self) -> int:
        """Its first token."""
        ...

    @property
    def end(self) -> int:
        """The token behind its last one."""
        ...


ANSWER = "answer"
"""Owner of what the model wrote."""


class Kind(StrEnum):
    """What sort of part it is: what may be done about a difference there depends on it."""

    SYSTEM = "system"
    """The leading run of system messages."""
    TOOLS = "tools"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"
    TURN = "turn"
    """Any other message behind the first turn, a later system message for one."""
    TEMPLATE = "template"


@dataclass(frozen=True, slots=True)
class Place:
    """A region and its sort."""

    owner: str
    kind: Kind
    start: int
    """Its first token."""
    end: int
    """The token behind its last one."""


_SYSTEM_ROLES = frozenset({"system", "developer"})
_TURNS = frozenset({Kind.USER, Kind.ASSISTANT, Kind.TOOL})


def place_of(spans: Sequence[Span], token: int, roles: Sequence[str]) -> Place | None:
    """Find the region of the first token that differs.

    Where that is the one directly behind a message or tool, which so is shorter than the cached one, it is theirs.

    Args:
        spans: the regions of a prompt.
        token: its position; behind the last token nothing is.
        roles: of the messages that were rendered.
    """
    before: Span | None = None
    for span in spans:
        if span.start <= token < span.end:
            is_behind = before is not None and token == span.start and span.owner == Kind.TEMPLATE
            found = before if is_behind and before is not None else span
            return Place(found.owner, _kind_of(found.owner, roles), found.start, found.end)
        before = span
    return None


def owners_of_blocks(spans: Sequence[Span], *, num_blocks: int, block_size: int) -> list[list[str]]:
    """Name the regions whose tokens a block holds, in order, block by block; the answer's tokens belong to `answer`.

    Args:
        spans: the regions of a prompt; empty: they are not known, and so are no owners.
        num_blocks: of the request, prompt and answer.
        block_size: tokens a block.
    """
    owners: list[list[str]] = [[] for _ in range(num_blocks)]
    if not spans:
        return owners
    for span in spans:
        for block in range(span.start // block_size, min(num_blocks, -(-span.end // block_size))):
            owners[block].append(span.owner)
    for block in range(spans[-1].end // block_size, num_blocks):
        owners[block].append(ANSWER)
    return owners


def _kind_of(owner: str, roles: Sequence[str]) -> Kind:
    name, _, rest = owner.partition("[")
    if name != "messages":
        return Kind(name)
    number = rest.partition("]")[0]
    index = int(number)
    if index >= len(roles):
        return Kind.TURN
    if all(role in _SYSTEM_ROLES for role in roles[: index + 1]):
        return Kind.SYSTEM
    return Kind(roles[index]) if roles[index] in _TURNS else Kind.TURN
