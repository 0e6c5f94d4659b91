"""Prompts that clients want kept for a while: hints to the eviction, where an operator's pins and priorities are orders.

All hints together cover a bounded part of the cache, and the oldest ends first: whoever marks everything only gains what
others do not mark. A conversation that goes on has one hint, which grows with it.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from gateway.backends.base import Backend, BackendError, GenerationRequest
from gateway.backends.control import HashedPrompt
from gateway.chat_request import RetentionHint
from gateway.conversation import Conversation
from gateway.rendering import RenderedPrompt
from prefixcache.hashing import HASH_BYTES

LEVEL = 1
"""The lowest priority that there is."""
MAX_SHARE = 0.25
"""Of the pool's blocks."""

_MAX_WAITING = 64
"""Hints that the engine has not taken yet; more are dropped."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class RetainedPrompt:
    """What is to be kept."""

    prompt: HashedPrompt
    seconds: float


def retained_of(
    hints: Iterable[RetentionHint],
    request: GenerationRequest,
    rendered: RenderedPrompt,
    conversation: Conversation,
    block_size: int,
) -> list[RetainedPrompt]:
    """Give what the hints of a request are about: all of its prompt, or the full blocks before the first turn."""
    first = f"messages[{conversation.num_head_messages}]"

    def head() -> HashedPrompt:
        starts = (region.start for region in rendered.regions if region.owner.partition(".")[0] == first)
        return request.leading(next(starts, 0) // block_size, block_size)

    return [RetainedPrompt(head() if hint.is_of_head else request, hint.seconds) for hint in hints]


@dataclass(frozen=True, slots=True)
class _Hint:
    last_hash: bytes
    """Of its last block; it stands for all before it."""
    num_blocks: int
    expires_at: float


class RetentionHints:
    """Those that one engine was given."""

    def __init__(self, backend: Backend, clock: Callable[[], float] = time.monotonic) -> None:
        self._backend = backend
        self._clock = clock
        self._epoch: int | None = None
        self._hints: OrderedDict[str, _Hint] = OrderedDict()  # by handle, the oldest first
        self._numbers = itertools.count()
        self._waiting: set[asyncio.Task[None]] = set()

    def keep(self, retained: RetainedPrompt) -> None:
        """Give a hint, in the background: nobody waits for it."""
        if len(self._waiting) < _MAX_WAITING:
            task = asyncio.create_task(self._keep(retained))
            self._waiting.add(task)
            task.add_done_callback(self._waiting.discard)

    async def _keep(self, retained: RetainedPrompt) -> None:
        try:
            model = self._backend.model_info()
            if model.cache is None:
                return
            if model.hash_epoch != self._epoch:  # an engine that knows nothing of earlier hints
                self._epoch = model.hash_epoch
                self._hints.clear()
            budget = int(model.cache.num_blocks * MAX_SHARE)
            prompt = retained.prompt.leading(budget, model.block_size)
            num_blocks = len(prompt.block_hashes) // HASH_BYTES
            if not num_blocks:
                return
            expires_at = self._clock() + retained.seconds
            handle = self._handle_of(prompt, expires_at)
            self._hints[handle] = _Hint(prompt.block_hashes[-HASH_BYTES:], num_blocks, expires_at)
            self._hints.move_to_end(handle)
            for oldest in self._beyond(budget):
                await self._backend.end_priority(oldest)
            await self._backend.prioritize(handle, prompt, level=LEVEL, seconds=retained.seconds)
        except BackendError as error:
            logger.info("a hint is lost: %s", error)

    def _handle_of(self, prompt: HashedPrompt, expires_at: float) -> str:
        """Give the handle of the hint that this one goes on from, or a new one."""
        for handle, hint in self._hints.items():
            end = hint.num_blocks * HASH_BYTES
            if hint.expires_at <= expires_at and prompt.block_hashes[end - HASH_BYTES : end] == hint.last_hash:
                return handle
        return f"hint-{next(self._numbers)}"

    def _beyond(self, budget: int) -> list[str]:
        """Forget the hints that have expired, and the oldest ones beyond the budget. Returns: what the engine must end."""
        now = self._clock()
        for handle in [handle for handle, hint in self._hints.items() if hint.expires_at <= now]:
            del self._hints[handle]
        num_blocks = sum(hint.num_blocks for hint in self._hints.values())
        ended = []
        while num_blocks > budget:
            handle, hint = self._hints.popitem(last=False)
            num_blocks -= hint.num_blocks
            ended.append(handle)
        return ended
