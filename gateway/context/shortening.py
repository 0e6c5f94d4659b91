"""From a chat in canonical form to the one that is sent: what its client wants cleared goes first, then the policy cuts.

One way for requests, for whoever counts their tokens, and for dry runs: so all of them get the same tokens.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Generic, NamedTuple, Protocol, TypeVar

from gateway.context.asked import ContextAsked
from gateway.context.clearing import Cleared
from gateway.context.editor import ContextEditor
from gateway.context.fitted import Fitted
from gateway.context.policy import ContextPolicy
from gateway.context.refusal import could_be_cut
from gateway.context.report import ContextReport
from gateway.context.rooms import room_of, rooms_of
from gateway.context.rule import context_policy_in
from gateway.context.summary import Lacks, Summary
from gateway.conversation import Conversation
from gateway.errors import ContextLengthError
from gateway.normalize.registry import RuleSet
from gateway.normalize.rule import Mode

_T = TypeVar("_T")
_PromptT = TypeVar("_PromptT")


@dataclass(frozen=True, slots=True)
class LongChat:
    """What decides about what is left out."""

    conversation: Conversation
    """In canonical form."""
    wishes: ContextAsked
    rules: RuleSet
    scope: str
    """Whose it is."""
    window: int
    """Tokens of prompt and answer together."""
    max_tokens: int | None
    """That the answer must have room for; None: nobody says how many."""


class Prompt(NamedTuple, Generic[_PromptT]):
    """Made of a chat that may be sent."""

    made: _PromptT
    num_tokens: int


class Run(Protocol):
    """Calls what takes time where that holds up nobody."""

    async def __call__(self, work: Callable[[], _T], /) -> _T:
        """Call it."""
        ...


class Attempt(Protocol[_PromptT]):
    """Makes a prompt of a chat that may be sent."""

    async def __call__(self, conversation: Conversation, /, *, is_last: bool) -> Prompt[_PromptT]:
        """Make it.

        Raises: ContextLengthError: it is too long; the last attempt may pass all the same.
        """
        ...


Summarize = Callable[[Lacks], Awaitable[Summary]]
"""Lets the model write a summary."""


@dataclass(frozen=True, slots=True)
class Sender(Generic[_PromptT]):
    """Whoever wants the prompt."""

    run: Run
    attempt: Attempt[_PromptT]
    summarize: Summarize | None = None
    """None: the model writes nothing, and quotes stand in for what it would."""


class Shortened(NamedTuple, Generic[_PromptT]):
    """What is sent."""

    conversation: Conversation
    prompt: Prompt[_PromptT]
    report: ContextReport | None = None
    """None: neither the client nor the policy leaves anything out, whatever comes."""


async def shorten(chat: LongChat, editor: ContextEditor, sender: Sender[_PromptT]) -> Shortened[_PromptT]:
    """Leave out what is to go; without wishes the policy may only audit.

    Args:
        chat: what came.
        editor: of the policy.
        sender: makes prompts of it.

    Raises: ContextLengthError: it is too long all the same.
    """
    wishes, cleared, seconds = chat.wishes, Cleared(chat.conversation), 0.0
    if wishes.is_asked:
        cleared, seconds = await _timed(sender, partial(wishes.clear, chat.conversation, editor.count))
    if (policy := wishes.policy_in(chat.rules)) is not None:
        sent = await _cut(replace(chat, conversation=cleared.conversation), policy, editor, sender)
    else:
        sent = await _whole(cleared.conversation, sender)
    if wishes.is_asked:
        report = sent.report or ContextReport.of_whole(sent.prompt.num_tokens)
        return sent._replace(report=report.behind(cleared, seconds))
    if (policy := context_policy_in(chat.rules, Mode.AUDIT)) is not None:
        room = room_of(chat.window, chat.max_tokens)
        fitted, seconds = await _timed(sender, partial(editor.audit, chat.conversation, policy, room, chat.scope))
        return sent._replace(report=ContextReport.of(Mode.AUDIT, fitted, sent.prompt.num_tokens, seconds))
    return sent


async def _whole(conversation: Conversation, sender: Sender[_PromptT]) -> Shortened[_PromptT]:
    try:
        return Shortened(conversation, await sender.attempt(conversation, is_last=True))
    except ContextLengthError as error:
        raise could_be_cut(error) from error


async def _cut(
    chat: LongChat, policy: ContextPolicy, editor: ContextEditor, sender: Sender[_PromptT]
) -> Shortened[_PromptT]:
    """Cut as the policy has it; where tokens were estimated too low, once more in less room."""
    seconds, summarize = 0.0, sender.summarize
    for room, is_last in rooms_of(chat.window, chat.max_tokens):
        begin = editor.edit if summarize is None else editor.begin
        begun, took = await _timed(sender, partial(begin, chat.conversation, policy, room, chat.scope))
        seconds += took
        if isinstance(begun, Fitted):
            fitted = begun
        else:
            assert summarize is not None, "else nothing is lacking"
            summary, summarize = await summarize(begun), None  # once: in less room quotes stand in
            fitted, took = await _timed(sender, partial(begun.finish, summary))
            seconds += took
        try:
            prompt = await sender.attempt(fitted.conversation, is_last=is_last)
        except ContextLengthError as error:
            if is_last:
                raise await sender.run(partial(editor.refusal, error, fitted)) from error
        else:
            report = ContextReport.of(Mode.ON, fitted, prompt.num_tokens, seconds)
            return Shortened(fitted.conversation, prompt, report)
    raise AssertionError("unreachable")


async def _timed(sender: Sender[_PromptT], work: Callable[[], _T]) -> tuple[_T, float]:
    """Do it, and say how many seconds it took, without the wait for its turn."""

    def timed() -> tuple[_T, float]:
        began = time.perf_counter()
        return work(), time.perf_counter() - began

    return await sender.run(timed)
