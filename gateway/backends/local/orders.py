"""`CacheControl` over a worker: orders go out, outcomes come back as the seam's values."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Mapping
from itertools import chain, repeat
from typing import TypeVar

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
    Warmed,
    WarmPrompt,
)
from gateway.backends import control
from gateway.backends.base import BackendUnavailableError, RequestRejectedError
from gateway.backends.control import HashedPrompt
from gateway.backends.local.life import WorkerLife, prompt_fields
from prefixcache.interface import Explanation

CALL_SECONDS = 10.0
"""For all but warm-ups. The worker answers between two steps, and one step over long prompts can take seconds."""

_Kind = TypeVar("_Kind")


class WorkerOrders(ABC):
    """The part of a backend that gives orders to the worker of its present life."""

    async def warm(self, prompt: HashedPrompt) -> control.WarmUp:
        """Compute a prompt ahead of use; takes as long as it takes."""
        warmed = _expect(Warmed, await self._present_life().call(WarmPrompt(**prompt_fields(prompt))))
        return control.WarmUp(warmed.num_cached_tokens, warmed.refusal)

    async def pin(self, handle: str, prompt: HashedPrompt) -> control.PinOutcome:
        """Keep a prompt from eviction."""
        pinned = _expect(Pinned, await self._call(PinPrompt(handle=handle, **prompt_fields(prompt))))
        return control.PinOutcome(
            refusal=pinned.refusal,
            num_blocks=pinned.num_blocks,
            pinned_blocks=pinned.pinned_blocks,
            pinned_blocks_limit=pinned.pinned_blocks_limit,
            shared_blocks=pinned.shared_blocks,
            shared_blocks_limit=pinned.shared_blocks_limit,
        )

    async def unpin(self, handle: str) -> bool:
        """Give a pin back."""
        return _is_found(Unpinned, await self._call(UnpinPrompt(handle)))

    async def prioritize(self, handle: str, prompt: HashedPrompt, *, level: int, seconds: float | None = None) -> int:
        """Evict a prompt later than others."""
        order = PrioritizePrompt(handle=handle, level=level, seconds=seconds, **prompt_fields(prompt))
        return _expect(Prioritized, await self._call(order)).num_blocks

    async def end_priority(self, handle: str) -> bool:
        """Give a priority back."""
        return _is_found(Done, await self._call(EndPriority(handle)))

    async def set_cache_options(
        self, *, max_shared_ratio: float | None = None, growth_reserve: int | None = None
    ) -> control.CacheOptions:
        """Change what may change while serving."""
        options = _expect(CacheOptions, await self._call(SetCacheOptions(max_shared_ratio, growth_reserve)))
        return control.CacheOptions(options.max_shared_ratio, options.growth_reserve)

    async def blocks_of(self, request_id: str) -> control.RequestBlocks | None:
        """Look at a request's block table."""
        wire_id = self._present_life().wire_id(request_id)
        if wire_id is None:
            return None
        outcome = await self._call(GetBlocks(wire_id))
        return _request_blocks(_expect(RequestBlocks, outcome)) if _is_found(RequestBlocks, outcome) else None

    async def blocks_by_namespace(self) -> Mapping[bytes, int]:
        """Count the blocks of each namespace."""
        return _expect(NamespaceBlocks, await self._call(GetNamespaces())).num_blocks

    async def explain(self, prompt: HashedPrompt, *, reveal_other_scopes: bool = False) -> Explanation:
        """Tell what of a prompt is cached."""
        order = ExplainPrompt(reveal_other_scopes=reveal_other_scopes, **prompt_fields(prompt))
        return _expect(Explained, await self._call(order)).explanation

    async def explain_request(
        self, request_id: str, *, reveal_other_scopes: bool = False
    ) -> control.ExplainedRequest | None:
        """Tell what of a request's prompt was cached at its admission."""
        life = self._present_life()
        wire_id = life.wire_id(request_id)
        outcome = None if wire_id is None else await self._call(ExplainRequest(wire_id, reveal_other_scopes))
        if outcome is None or not _is_found(Explained, outcome):
            return None
        explained = _expect(Explained, outcome)
        nearest = explained.nearest_request_id
        return control.ExplainedRequest(explained.explanation, nearest and life.request_id(nearest))

    @abstractmethod
    def _present_life(self) -> WorkerLife:
        """Return the life that serves. Raises: BackendUnavailableError: there is none."""

    async def _call(self, order: Order) -> Outcome:
        life = self._present_life()
        try:
            async with asyncio.timeout(CALL_SECONDS):
                outcome = await life.call(order)
        except TimeoutError as error:
            raise BackendUnavailableError(f"the engine did not answer within {CALL_SECONDS:g} s") from error
        if isinstance(outcome, Pinned | Unpinned):
            life.max_request_tokens = outcome.max_request_tokens
        return outcome


def _expect(kind: type[_Kind], outcome: Outcome) -> _Kind:
    if isinstance(outcome, Refused):
        raise RequestRejectedError(outcome.message, param=outcome.param)
    assert isinstance(outcome, kind), outcome
    return outcome


def _is_found(kind: type[object], outcome: Outcome) -> bool:
    return not isinstance(outcome, NotFound) and bool(_expect(kind, outcome))


def _request_blocks(view: RequestBlocks) -> control.RequestBlocks:
    """Write the reasons out, one a block: they come in the order of the prompt's blocks, which are the table's first."""
    reasons = chain.from_iterable(repeat(reason, count) for reason, count in view.reasons.items())
    return control.RequestBlocks(
        status=view.status,
        num_prompt_tokens=view.num_prompt_tokens,
        num_cached_tokens=view.num_cached_tokens,
        reasons=view.reasons,
        blocks=[
            control.BlockInfo(
                block_id=block.block_id,
                state=block.state,
                ref_count=block.ref_count,
                shared=block.shared,
                pinned=block.pinned,
                num_tokens=block.num_tokens,
                reason=reason,
            )
            for block, reason in zip(view.blocks, chain(reasons, repeat(None)), strict=False)
        ],
    )
