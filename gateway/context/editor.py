"""Cuts long chats before they are rendered, and remembers what it derived of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from gateway.context.archives import Archives
from gateway.context.asking import asked_for_summary, usable_summary
from gateway.context.beginnings import Beginnings
from gateway.context.compression import shortening
from gateway.context.counts import remembering
from gateway.context.extract import summarize
from gateway.context.fitted import Fitted
from gateway.context.fitting import Fitter
from gateway.context.history import History
from gateway.context.passages import Archive as PassageArchive
from gateway.context.passages import printed
from gateway.context.plan import Plan, Planner
from gateway.context.plan_memory import PlanMemory
from gateway.context.policy import ContextPolicy
from gateway.context.quotes import Archive, Quotes, Sources
from gateway.context.refusal import still_too_long
from gateway.context.summary import Lacks, Summary
from gateway.context.units import Counter
from gateway.context.words import Words
from gateway.conversation import Conversation
from gateway.errors import ContextLengthError
from gateway.normalize.memory import TurnMemory


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
        if policy.summary != "model" or not (most_tokens := fitter.missing_summary_tokens(plan)):
            return finish()
        if (before := fitter.before_cut(plan)) is None:
            return finish()
        quotes = fitter.quotes
        return Lacks(
            scope,
            quotes.summary_key(plan),
            asked_for_summary(before, most_tokens),
            most_tokens,
            policy.summary_timeout_seconds,
            check=lambda text, is_cut: usable_summary(text, is_cut=is_cut, most_tokens=most_tokens, count=self.count),
            extract=partial(quotes.extract, plan, most_tokens),
            finish=finish,
        )

    def audit(self, conversation: Conversation, policy: ContextPolicy, room: int, scope: str) -> Fitted:
        """Plan what `edit` would leave out, and write no texts; they count with all that they may take."""
        fitter, plan, finish = self._planned(conversation, policy, room, scope, _NOTHING)
        return replace(finish(), tokens_after=min(plan.num_tokens, fitter.planner.size(plan)))

    def refusal(self, error: ContextLengthError, fitted: Fitted) -> ContextLengthError:
        """Tell why a chat that was cut is still too long."""
        return still_too_long(error, fitted, self.count)

    def _planned(
        self,
        conversation: Conversation,
        policy: ContextPolicy,
        room: int,
        scope: str,
        sources: Sources | None = None,
    ) -> tuple[Fitter, Plan, Callable[..., Fitted]]:
        """Plan a chat; the last of what is returned carries the plan out, and remembers it."""
        count = remembering(self.count, self._memory, scope)
        history = History(
            conversation,
            count,
            document_tokens=policy.document_tokens,
            shorten=shortening(policy.compress_tool_results_over, self.count, self._memory, scope),
            exclude_tools=policy.exclude_tools,
        )
        planner, beginnings = Planner(history, policy, room), Beginnings(conversation)
        quotes = Quotes(history, planner, beginnings, count, sources or self._sources(scope, count))
        fitter, plans = Fitter(history, planner, count, quotes), PlanMemory(self._memory, scope)
        plan = planner.plan(plans.recall(history, planner, beginnings))

        def finish(summary: Summary | None = None) -> Fitted:
            fitted = fitter.fit(plan, summary)
            plans.keep(history, planner, beginnings, plan)
            return fitted

        return fitter, plan, finish

    def _sources(self, scope: str, count: Counter) -> Sources:
        return Sources(
            find_archive=lambda key, texts: _Archive(self._archives.of(scope, key, texts), count),
            summarize=lambda texts, budget: summarize(texts, budget, count, self._words),
            texts=_Texts(self._memory, scope),
        )


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


_NOTHING = Sources(find_archive=lambda *_: _NothingFound(), summarize=lambda *_: "", texts=_NothingKept())
