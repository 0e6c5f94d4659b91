"""What may be done with a chat that does not fit its window: nothing, what others do, and the gateway's own policy."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from gateway.context.editor import ContextEditor
from gateway.context.estimate import TokenCounter
from gateway.context.policy import ContextPolicy
from gateway.context.rooms import room_of, rooms_of
from gateway.context.units import Unit, borders_of, units_of
from gateway.conversation import Conversation, Message
from gateway.normalize.memory import TurnMemory
from gateway.rendering import PromptRenderer, RenderedPrompt
from gateway.tokenizer import Tokenizer

_NEVER = 2**31 - 1


@dataclass(frozen=True)
class Sent:
    """A prompt, and what must be the same for the next one to begin with it."""

    prompt: RenderedPrompt
    is_cut: bool | None = None
    """Whether the chat was cut at this request; if not, it begins with the last one's prompt. None: that is not promised."""


class Policy(Protocol):
    """Makes prompts of one chat at a time; keeps nothing that they depend on."""

    name: str

    def prompt(self, conversation: Conversation, window: int) -> Sent | None:
        """Make what is sent where prompt and answer have a window of so many tokens; None: the request is refused."""
        ...


class NoPolicy:
    """Refuses what does not fit."""

    name = "no policy"

    def __init__(self, renderer: PromptRenderer) -> None:
        self._renderer = renderer

    def prompt(self, conversation: Conversation, window: int) -> Sent | None:
        """See `Policy`."""
        prompt = self._renderer.render(conversation, tenant="")
        return Sent(prompt, is_cut=False) if len(prompt.token_ids) <= room_of(window, None) else None


class _Dropping(ABC):
    """Sends as many units as fit, chosen anew for each request."""

    name = ""

    def __init__(self, renderer: PromptRenderer) -> None:
        self._renderer = renderer
        self._sizes: dict[str, int] = {}

    def prompt(self, conversation: Conversation, window: int) -> Sent | None:
        head = conversation.messages[: conversation.num_head_messages]
        units = units_of(conversation.messages, borders_of(conversation.messages, len(head)))
        room, spare = room_of(window, None), 0
        while (kept := self._kept(units, room - spare - sum(map(self._size, head)))) is not None:
            messages = (*head, *(message for unit in kept for message in unit.messages))
            prompt = self._renderer.render(replace(conversation, messages=messages), tenant="")
            if (excess := len(prompt.token_ids) - room) <= 0:
                return Sent(prompt)
            spare += excess
        return None

    @abstractmethod
    def _kept(self, units: Sequence[Unit], room: int) -> list[Unit] | None:
        """Choose what is sent; None: nothing fits."""

    def _size(self, message: Message) -> int:
        """Exact but for what the template writes once."""
        key = repr(message)
        if key not in self._sizes:
            one = self._renderer.render(Conversation((message,)), tenant="")
            two = self._renderer.render(Conversation((message, message)), tenant="")
            self._sizes[key] = len(two.token_ids) - len(one.token_ids)
        return self._sizes[key]

    def _size_of(self, unit: Unit) -> int:
        return sum(map(self._size, unit.messages))


class SlidingWindow(_Dropping):
    """Drops the oldest turns, anew for each request; refuses where the last one alone is too long."""

    name = "sliding window"

    def _kept(self, units: Sequence[Unit], room: int) -> list[Unit] | None:
        start = len(units)
        while start and (room := room - self._size_of(units[start - 1])) >= 0:
            start -= 1
        return list(units[start:]) or None


class MiddleOut(_Dropping):
    """Keeps a first and a last half and drops what is between; a last turn that is too long loses its middle.

    Source: OpenRouter's documentation of message transforms.
    """

    name = "middle-out"

    def _kept(self, units: Sequence[Unit], room: int) -> list[Unit] | None:
        last, left = units[-1], room - self._size_of(units[-1])
        if left < 0:
            return None if room < 0 else [self._shortened(last, room)]
        if sum(map(self._size_of, units)) <= room:
            return list(units)
        head = room // 2
        stop, start = 0, len(units) - 1
        while stop < start and (size := self._size_of(units[stop])) <= min(head, left):
            head, left, stop = head - size, left - size, stop + 1
        while start > stop and (size := self._size_of(units[start - 1])) <= left:
            left, start = left - size, start - 1
        return [*units[:stop], *units[start:]]

    def _shortened(self, unit: Unit, room: int) -> Unit:
        """Cut the middle of its longest text out."""
        longest = max(unit.messages, key=self._size)
        text = str(longest.content)
        share = max(0.0, room - (self._size_of(unit) - self._size(longest))) / self._size(longest)
        half = int(0.45 * share * len(text))
        shorter = replace(longest, content=text[:half] + text[len(text) - half :])
        return replace(unit, messages=tuple(shorter if message is longest else message for message in unit.messages))


class Ours:
    """The gateway's, as its ingress applies it."""

    def __init__(self, renderer: PromptRenderer, tokenizer: Tokenizer, policy: ContextPolicy, name: str) -> None:
        self.name = name
        self._renderer = renderer
        self._policy = policy
        self._editor = ContextEditor(TokenCounter(tokenizer.encode_all), TurnMemory())

    def prompt(self, conversation: Conversation, window: int) -> Sent | None:
        """See `Policy`."""
        for tried, _ in rooms_of(window, None):
            fitted = self._editor.edit(conversation, self._policy, tried, "benchmark")
            prompt = self._renderer.render(fitted.conversation, tenant="")
            if len(prompt.token_ids) <= room_of(window, None):
                return Sent(prompt, is_cut=fitted.is_new_cut)
        return None


def policies(renderer: PromptRenderer, tokenizer: Tokenizer) -> list[Policy]:
    """Give all rows of the table."""
    alone = ContextPolicy(document_tokens=_NEVER, passage_share=0.0, summary="off")
    ours = {
        "ours": ContextPolicy(),
        "ours 0.7 to 0.35": ContextPolicy(high=0.7, low=0.35),
        "ours 0.95 to 0.7": ContextPolicy(high=0.95, low=0.7),
        "ours 0.95 to 0.35": ContextPolicy(high=0.95, low=0.35),
        "ours, no summary": ContextPolicy(summary="off"),
        "ours, no passages": ContextPolicy(passage_share=0.0),
        "ours, only clearing and dropping": alone,
        "ours, only dropping": replace(alone, clear_at_least=_NEVER),
    }
    rivals: list[Policy] = [NoPolicy(renderer), SlidingWindow(renderer), MiddleOut(renderer)]
    return [*rivals, *(Ours(renderer, tokenizer, policy, name) for name, policy in ours.items())]
