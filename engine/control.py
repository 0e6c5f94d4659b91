"""Performs the orders of the gateway on a running engine, between two steps. Loads no torch.

Owns the handles of pins and priorities, and the clock by which priorities expire.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf

from engine.calls import (
    CacheOptions,
    Done,
    EndPriority,
    Explained,
    ExplainPrompt,
    ExplainRequest,
    GetBlocks,
    GetNamespaces,
    NamespaceBlocks,
    NotFound,
    Order,
    Outcome,
    Pinned,
    PinPrompt,
    Prioritized,
    PrioritizePrompt,
    Refused,
    RequestBlocks,
    SetCacheOptions,
    Unpinned,
    UnpinPrompt,
    WarmPrompt,
)
from engine.errors import InvalidRequestError
from engine.prompt import HashedPrompt, checked_prompt
from engine.scheduler import Scheduler
from engine.warm_up import WarmUps
from prefixcache import PrefixCache
from prefixcache.interface import Explanation, Pin, Prompt
from prefixcache.retention import Priority


class EngineControl:
    """Knows what each order means; the cache, the scheduler and the warm-ups do it."""

    def __init__(
        self,
        cache: PrefixCache,
        scheduler: Scheduler,
        warm_ups: WarmUps,
        *,
        vocab_size: int,
        clock: Callable[[], float],
    ) -> None:
        self._cache = cache
        self._scheduler = scheduler
        self._warm_ups = warm_ups
        self._vocab_size = vocab_size
        self._clock = clock
        self._pins: dict[str, Pin] = {}
        self._priorities: dict[str, Priority] = {}

    def perform(self, call_id: int, order: Order) -> Outcome | None:
        """Carry an order out; None: it takes several steps, and the warm-ups reply at its end."""
        try:
            if isinstance(order, HashedPrompt):
                prompt = checked_prompt(order, vocab_size=self._vocab_size)
                if isinstance(order, WarmPrompt):
                    self._warm_ups.add(call_id, prompt)
                    return None
                return self._perform_on_prompt(order, prompt)
            return self._perform(order)
        except InvalidRequestError as error:
            return Refused(str(error), error.param)

    def expire(self) -> None:
        """End the priorities whose time is over."""
        if not self._priorities:
            return
        now = self._clock()
        self._cache.expire(now)
        for handle in [handle for handle, priority in self._priorities.items() if priority.expires_at <= now]:
            del self._priorities[handle]

    def _perform_on_prompt(self, order: PinPrompt | PrioritizePrompt | ExplainPrompt, prompt: Prompt) -> Outcome:
        match order:
            case PinPrompt():
                return self._pin(order.handle, prompt)
            case PrioritizePrompt():
                return self._prioritize(order, prompt)
            case ExplainPrompt():
                return self._explained(prompt, self._cache.explain(prompt), reveal=order.reveal_other_scopes)

    def _perform(
        self, order: UnpinPrompt | EndPriority | SetCacheOptions | GetBlocks | ExplainRequest | GetNamespaces
    ) -> Outcome:
        match order:
            case UnpinPrompt(handle):
                pin = self._pins.pop(handle, None)
                if pin is None:
                    return NotFound(f"nothing is pinned as {handle!r}")
                self._cache.unpin(pin)
                return Unpinned(self._cache.max_request_tokens())
            case EndPriority(handle):
                self.expire()
                priority = self._priorities.pop(handle, None)
                if priority is None:
                    return NotFound(f"nothing has a priority as {handle!r}, or it has expired")
                self._cache.end_priority(priority)
                return Done()
            case SetCacheOptions():
                return self._set_options(order)
            case GetBlocks(request_id):
                return self._blocks(request_id)
            case GetNamespaces():
                return NamespaceBlocks(self._cache.blocks_by_namespace())
            case ExplainRequest(request_id, reveal):
                kept = self._scheduler.history.explanations.of(request_id)
                if kept is None:
                    return NotFound(f"no request {request_id!r} was admitted lately")
                return self._explained(kept.prompt, kept.explanation, reveal=reveal)

    def _explained(self, prompt: Prompt, explanation: Explanation, *, reveal: bool) -> Explained:
        if reveal:
            explanation = self._cache.reveal(prompt, explanation)
        return Explained(explanation, self._scheduler.history.explanations.request_id(explanation.owner))

    def _pin(self, handle: str, prompt: Prompt) -> Pinned:
        """Pin, in place of what the handle names now; when that is refused the old pin stays."""
        result = self._cache.pin(prompt)
        if result.pin is not None:
            if old := self._pins.get(handle):
                self._cache.unpin(old)
            self._pins[handle] = result.pin
        now = self._cache.snapshot()
        return Pinned(
            refusal=result.refusal,
            num_blocks=result.num_blocks,
            pinned_blocks=now.pinned_blocks,
            pinned_blocks_limit=now.pinned_blocks_limit,
            shared_blocks=now.shared_blocks,
            shared_blocks_limit=now.shared_blocks_limit,
            max_request_tokens=self._cache.max_request_tokens(),
        )

    def _prioritize(self, order: PrioritizePrompt, prompt: Prompt) -> Prioritized:
        if order.level < 1:
            raise InvalidRequestError(f"level: got {order.level}, wanted at least 1", param="level")
        if order.seconds is not None and not order.seconds > 0:
            raise InvalidRequestError(f"seconds: got {order.seconds}, wanted more than 0", param="seconds")
        expires_at = inf if order.seconds is None else self._clock() + order.seconds
        priority = self._cache.prioritize(prompt, level=order.level, expires_at=expires_at)
        if old := self._priorities.get(order.handle):
            self._cache.end_priority(old)
        self._priorities[order.handle] = priority
        return Prioritized(len(priority.blocks))

    def _set_options(self, order: SetCacheOptions) -> CacheOptions:
        ratio, reserve = order.max_shared_ratio, order.growth_reserve
        if ratio is not None and not 0.0 <= ratio <= 1.0:
            raise InvalidRequestError(f"max_shared_ratio: got {ratio}, wanted 0 to 1", param="max_shared_ratio")
        if reserve is not None and reserve < 0:
            raise InvalidRequestError(f"growth_reserve: got {reserve}, wanted at least 0", param="growth_reserve")
        if ratio is not None:
            self._cache.set_max_shared_ratio(ratio)
        if reserve is not None:
            self._cache.set_growth_reserve(reserve)
        return CacheOptions(self._cache.max_shared_ratio, self._cache.config.growth_reserve)

    def _blocks(self, request_id: str) -> RequestBlocks | NotFound:
        history = self._scheduler.history
        request = self._scheduler.find(request_id)
        view = history.ended(request_id) if request is None else history.view(request)
        return view or NotFound(f"no request {request_id!r} runs, or ended lately")
