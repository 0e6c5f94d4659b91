"""Lets the model write a summary, once for each cut; where it does not deliver, sentences are quoted instead.

Knows no engine: whoever calls says how the model is asked.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import NamedTuple

from gateway.context.summary import Fallback, Lacks, Summary
from gateway.conversation import Conversation
from gateway.normalize.memory import TurnMemory

logger = logging.getLogger(__name__)


class Said(NamedTuple):
    """What the model wrote."""

    text: str
    """Without thoughts and calls."""
    is_cut: bool
    """It had more to say."""


Ask = Callable[[Conversation, int], Awaitable[Said]]
"""Lets the model answer a chat in at most so many tokens. May raise anything; cancelled, it aborts the answer."""


@dataclass(slots=True)
class _Flight:
    """A summary that is written now."""

    task: asyncio.Task[Summary]
    num_waiting: int = 0


class SummaryWriter:
    """Belongs to one event loop.

    Args:
        memory: where summaries are kept.
        note_fallback: told why, whenever the model did not deliver.
    """

    def __init__(self, memory: TurnMemory, note_fallback: Callable[[Fallback], None]) -> None:
        self._memory = memory
        self._note_fallback = note_fallback
        self._flights: dict[tuple[str, bytes], _Flight] = {}

    async def write(self, lacks: Lacks, ask: Ask) -> Summary:
        """Give a summary, and keep it. Never fails; requests that lack the same one wait for the first one's.

        Cancelled, it aborts the call unless others wait for it.
        """
        key = (lacks.scope, lacks.key)
        found: Summary | None = self._memory.find(*key)
        if found is not None:
            return found
        flight = self._flights.get(key)
        if flight is None:
            flight = self._flights[key] = _Flight(asyncio.create_task(self._write(lacks, ask)))
        flight.num_waiting += 1
        try:
            return await asyncio.shield(flight.task)
        finally:
            flight.num_waiting -= 1
            if not flight.num_waiting:
                del self._flights[key]
                flight.task.cancel()

    async def _write(self, lacks: Lacks, ask: Ask) -> Summary:
        summary = await self._asked(lacks, ask)
        if isinstance(summary, str):
            self._note_fallback(summary)
            # A fallback is kept, too: were the model to deliver later, what was sent meanwhile would change.
            summary = Summary(await asyncio.to_thread(lacks.extract), "extractive", summary)
        self._memory.keep(lacks.scope, lacks.key, summary)
        return summary

    async def _asked(self, lacks: Lacks, ask: Ask) -> Summary | Fallback:
        try:
            async with asyncio.timeout(lacks.timeout_seconds):
                said = await ask(lacks.conversation, lacks.max_tokens)
        except TimeoutError:
            return "timed_out"
        except Exception as error:  # whatever it is: the request itself can be answered without
            logger.warning("no summary by the model: %s: %s", type(error).__name__, error)
            return "failed"
        text = lacks.check(*said)
        if text is None:
            logger.warning("no summary by the model: what it wrote in %d characters is none", len(said.text))
            return "failed"
        return Summary(text, "model")
