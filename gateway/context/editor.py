"""Cuts long chats before they are rendered, and remembers what it derived of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from gateway.context.archives import Archives
from gateway.context.asking import asked_for_summary, usable_summary
from gateway.context.beginnings import Beginnings
from gateway.context.compression import shortening
from gateway.context.counts import remembering
from gateway.context.extract import summarize
from gateway.context.fitting import Archive, Fitted, Fitter
from gateway.context.history import History
from gateway.context.passages import Archive as PassageArchive
from gateway.context.passages import printed
from gateway.context.plan import Plan, Planner
from gateway.context.plan_memory import PlanMemory
from gateway.context.policy import ContextPolicy
from gateway.context.refusal import still_too_long
from gateway.context.summary import Lacks, Summary
from gateway.context.units import Counter
from gateway.context.words import Words
from gateway.conversation import Conversation
from gateway.errors import ContextLengthError
from gateway.normalize.memory import TurnMemory

DEFAULT_ANSWER_TOKENS = 1024
"""Kept free where a request does not say how long its answer may become, and at most an eighth of the window."""
_NUM_ATTEMPTS = 3
_TIGHTER = 0.75
"""The part of the room that the next attempt has."""


def room_of(window: int, max_tokens: int | None) -> int:
    """Tell how many tokens a prompt may have.

    The answer's share is at least that of a request that says nothing, and rounded up to a power of two: whoever asks for
    a little more or less gets the same cuts.

    Args:
        window: of the model, prompt and answer together.
        max_tokens: asked for; None: nothing was.
    """
    least = min(DEFAULT_ANSWER_TOKENS, window // 8)
    if max_tokens is None or max_tokens <= least:
        return window - least
    rounded = 1 << max(0, max_tokens - 1).bit_length()
    return max(1, window - rounded if 2 * rounded <= window else window - max_tokens)


def rooms_of(window: int, max_tokens: int | None) -> Iterator[tuple[int, bool]]:
    """Give the rooms to try, each with whether it is the last: tighter ones where tokens were estimated too low."""
    room = room_of(window, max_tokens)
    for attempt in range(1, _NUM_ATTEMPTS + 1):
        yield room, attempt == _NUM_ATTEMPTS
        room = int(_TIGHTER * room)


class ContextEditor:
    """Safe to call from several threads.

    Args:
        count: see `Counter`. Others who clear texts of a chat count with it, too.
        memory: of what was derived.
    """

    def __init__(self, count: Counter, memory: TurnMemory) -> None:
        self.count = count
        self._memory = memory
        self._words = Words()
        self._archives = Archives(words=self._words)

    def edit(self, conversation: Conversation, policy: ContextPolicy, room: int, scope: str) -> Fitted:
        """Cut a chat where it is too long; quotes stand in for a summary that the model has yet to write.

        Args:
            conversation: in canonical form.
            policy: how.
            room: see `room_of`.
            scope: whose it is.
        """
        _, _, finish = self._planned(conversation, policy, room, scope)
        return finish()

    def begin(self, conversation: Conversation, policy: ContextPolicy, room: int, scope: str) -> Fitted | Lacks:
        """Do as `edit` does, but stop where the model is to write a summary first."""
        fitter, plan, finish = self._planned(conversation, policy, room, scope)
        if policy.summary != "model" or not fitter.lacks_summary(plan) or not (before := fitter.before_cut(plan)):
            return finish()
        most_tokens = fitter.summary_tokens(plan)
        return Lacks(
            scope,
            fitter.summary_key(plan),
            asked_for_summary(before, most_tokens),
            most_tokens,
            policy.summary_timeout_seconds,
            check=lambda text, is_cut: usable_summary(text, is_cut=is_cut, most_tokens=most_tokens, count=self.count),
            extract=partial(fitter.extract, plan, most_tokens),
            finish=finish,
        )

    def _planned(
        self, conversation: Conversation, policy: ContextPolicy, room: int, scope: str
    ) -> tuple[Fitter, Plan, Callable[..., Fitted]]:
        count = remembering(self.count, self._memory, scope)
        history = self._measured(conversation, policy, count, scope)
        planner, beginnings = Planner(history, policy, room), Beginnings(conversation)
        plans = PlanMemory(self._memory, scope)
        fitter = Fitter(
            history,
            planner,
            beginnings,
            count,
            find_archive=lambda key, texts: _Archive(self._archives.of(scope, key, texts), count),
            summarize=lambda texts, budget: summarize(texts, budget, count, self._words),
            texts=_Texts(self._memory, scope),
        )
        plan = planner.plan(plans.recall(history, planner, beginnings))

        def finish(summary: Summary | None = None) -> Fitted:
            fitted = fitter.fit(plan, summary)
            plans.keep(history, planner, beginnings, plan)
            return fitted

        return fitter, plan, finish

    def _measured(self, conversation: Conversation, policy: ContextPolicy, count: Counter, scope: str) -> History:
        return History(
            conversation,
            count,
            document_tokens=policy.document_tokens,
            shorten=shortening(policy.compress_tool_results_over, self.count, self._memory, scope),
            exclude_tools=policy.exclude_tools,
        )

    def refusal(self, error: ContextLengthError, fitted: Fitted) -> ContextLengthError:
        """Tell why a chat that was cut is still too long."""
        return still_too_long(error, fitted, self.count)

    def audit(self, conversation: Conversation, policy: ContextPolicy, room: int, scope: str) -> Fitted:
        """Plan what `edit` would leave out, and write no texts; they count with all that they may take."""
        count = remembering(self.count, self._memory, scope)
        history = self._measured(conversation, policy, count, scope)
        planner, beginnings = Planner(history, policy, room), Beginnings(conversation)
        plans = PlanMemory(self._memory, scope)
        fitter = Fitter(
            history,
            planner,
            beginnings,
            count,
            find_archive=lambda *_: _NothingFound(),
            summarize=lambda *_: "",
            texts=_NothingKept(),
        )
        fitted = fitter.fit(planner.plan(plans.recall(history, planner, beginnings)))
        plans.keep(history, planner, beginnings, fitted.plan)
        return replace(fitted, tokens_after=min(fitted.tokens_before, planner.size(fitted.plan)))


class _Archive(Archive):
    def __init__(self, archive: PassageArchive, count: Counter) -> None:
        self._archive = archive
        self._count = count

    def passages(self, question: str, budget: int) -> str:
        return printed(self._archive.best(question, budget, self._count))


class _NothingFound(Archive):
    def passages(self, question: str, budget: int) -> str:  # noqa: ARG002 -- of any
        return ""


class _NothingKept:
    def find(self, key: bytes) -> None:
        pass

    def keep(self, key: bytes, value: str | Summary) -> None:
        pass


class _Texts:
    def __init__(self, memory: TurnMemory, scope: str) -> None:
        self._memory = memory
        self._scope = scope

    def find(self, key: bytes) -> Any:
        return self._memory.find(self._scope, key)

    def keep(self, key: bytes, value: str | Summary) -> None:
        self._memory.keep(self._scope, key, value)
