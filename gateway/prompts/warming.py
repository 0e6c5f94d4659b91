"""Keeps registered prompts in the engine's cache: at start, after the engine restarts, and when they change.

The engine forgets everything when its process ends. Whenever a new one serves, all prompts are computed ahead of use,
the most wanted first, then pinned or prioritized; what does not fit into the time budget is listed and goes on behind.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from gateway.backends.base import Backend, BackendError, RequestRejectedError
from gateway.backends.control import HashedPrompt, PinOutcome
from gateway.prompts.versions import Retention

logger = logging.getLogger(__name__)

POLL_SECONDS = 0.2
EXPIRED = "its retention has expired"
"""Why a prompt that was to be pinned is not, where that is as it should be."""


@dataclass(frozen=True, slots=True, eq=False)
class WarmPrompt:
    """What is to be kept warm."""

    handle: str
    """Names it in the engine; unique."""
    name: str
    """For people."""
    retention: Retention
    num_public_tokens: int
    """Leading ones whose blocks everybody shares."""
    hashed: Callable[[], HashedPrompt]
    """For the engine that serves now."""

    def is_kept_like(self, other: WarmPrompt) -> bool:
        """Whether nothing need be done to keep the one in place of the other."""
        return (self.retention, self.num_public_tokens) == (other.retention, other.num_public_tokens)


@dataclass(frozen=True, slots=True)
class WarmState:
    """How far a prompt is."""

    status: str
    """`waiting`: its turn has not come; `warm`; `not_in_time`: the budget was over before; `failed`."""
    detail: str | None = None
    """Why it failed, or why it is not pinned."""
    num_cached_tokens: int = 0
    pinned: bool = False


class Warmer:
    """One background task over one backend."""

    def __init__(
        self,
        backend: Backend,
        *,
        budget_seconds: float,
        clock: Callable[[], float] = time.time,
        poll_seconds: float = POLL_SECONDS,
    ) -> None:
        self.budget_seconds = budget_seconds
        self._backend = backend
        self._clock = clock
        self._poll_seconds = poll_seconds
        self._prompts: dict[str, WarmPrompt] = {}
        self._states: dict[str, WarmState] = {}
        self._settled_epoch: int | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to follow the engine."""
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Leave the engine as it is."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    def is_settled(self) -> bool:
        """Whether the engine that serves now has had its warm-up: `/ready` waits for this."""
        return not self._prompts or (
            self._backend.ready() and self._settled_epoch == self._backend.model_info().hash_epoch
        )

    def state(self, handle: str) -> WarmState:
        """Tell how far one prompt is."""
        return self._states.get(handle, WarmState("waiting"))

    async def keep(self, prompts: Iterable[WarmPrompt]) -> None:
        """Keep these and no others from now on; what is new or kept otherwise is seen to by the background task."""
        before, self._prompts = self._prompts, {prompt.handle: prompt for prompt in prompts}
        for handle, prompt in self._prompts.items():
            if handle in before and not prompt.is_kept_like(before[handle]):
                self._states.pop(handle, None)
        for handle in before.keys() - self._prompts.keys():
            await self.release(handle)

    async def release(self, handle: str) -> None:
        """Let the engine evict a prompt like any other, unless it is to be kept; then it is seen to again."""
        self._states.pop(handle, None)
        try:
            await self._backend.unpin(handle)
            await self._backend.end_priority(handle)
        except BackendError:
            logger.info("a pin was not given back, for the engine does not serve; it ended with its process")

    async def claim(self, prompt: WarmPrompt) -> WarmState:
        """Keep a prompt that wants to be pinned from now on; where it cannot be, all is as it was.

        Raises: BackendUnavailableError: the engine does not serve.
        """
        before = self._prompts.get(prompt.handle)
        self._prompts[prompt.handle] = prompt
        is_pinned = False
        try:
            state = await self.warm_now(prompt)
            is_pinned = state.pinned
            return state
        finally:
            if not is_pinned:
                await self.drop(prompt.handle)
                if before is not None:
                    self._prompts[prompt.handle] = before

    async def drop(self, handle: str) -> None:
        """Keep a prompt no more."""
        self._prompts.pop(handle, None)
        await self.release(handle)

    async def warm_now(self, prompt: WarmPrompt) -> WarmState:
        """Compute, then pin and prioritize a prompt as its retention says, and no more than that.

        Raises: BackendUnavailableError: the engine does not serve.
        """
        try:
            state = await self._warm(prompt)
        except RequestRejectedError as error:
            state = WarmState("failed", str(error))
        if prompt.handle in self._prompts:
            self._states[prompt.handle] = state
        return state

    async def _warm(self, prompt: WarmPrompt) -> WarmState:
        hashed = prompt.hashed()
        warmed = await self._backend.warm(hashed)
        if warmed.refusal is not None:
            return WarmState("failed", warmed.refusal, warmed.num_cached_tokens)
        retention, now = prompt.retention, self._clock()
        has_expired = retention.expires_at is not None and retention.expires_at <= now
        if retention.priority and not has_expired:
            seconds = None if retention.expires_at is None else retention.expires_at - now
            await self._backend.prioritize(prompt.handle, hashed, level=retention.priority, seconds=seconds)
        else:
            await self._backend.end_priority(prompt.handle)
        if not retention.pin or has_expired:
            await self._backend.unpin(prompt.handle)
            return WarmState("warm", EXPIRED if has_expired else None, warmed.num_cached_tokens)
        outcome = await self._backend.pin(prompt.handle, hashed)
        detail = None if outcome.refusal is None else refusal_text(outcome)
        return WarmState("warm", detail, warmed.num_cached_tokens, pinned=outcome.refusal is None)

    async def _run(self) -> None:
        while True:
            try:
                await self._follow()
            except BackendError as error:
                logger.info("warming is interrupted: %s", error)
            except Exception:  # a follower that ended would leave the next engine cold
                logger.exception("warming failed")
            await asyncio.sleep(self._poll_seconds)

    async def _follow(self) -> None:
        if not self._backend.ready():
            return
        epoch = self._backend.model_info().hash_epoch
        if epoch != self._settled_epoch:
            self._states.clear()
            try:
                await self._warm_in_time()
            finally:
                self._settled_epoch = epoch
        for prompt in self._in_order():  # what came since, or was not in time
            if prompt.handle in self._prompts and self.state(prompt.handle).status in ("waiting", "not_in_time"):
                await self._warm_again(prompt)
        await self._end_expired()

    async def _warm_in_time(self) -> None:
        try:
            async with asyncio.timeout(self.budget_seconds):
                for prompt in self._in_order():
                    await self.warm_now(prompt)
        except TimeoutError:
            late = [prompt for prompt in self._in_order() if prompt.handle not in self._states]
            self._states.update({prompt.handle: WarmState("not_in_time") for prompt in late})
            logger.warning(
                "%d registered prompts were not warm after %g seconds and are warmed while serving: %s",
                len(late),
                self.budget_seconds,
                ", ".join(prompt.name for prompt in late),
            )

    async def _warm_again(self, prompt: WarmPrompt) -> None:
        await self.warm_now(prompt)
        if prompt.handle not in self._prompts:  # given up meanwhile
            await self.release(prompt.handle)

    async def _end_expired(self) -> None:
        now = self._clock()
        for prompt in list(self._prompts.values()):
            expires_at, state = prompt.retention.expires_at, self.state(prompt.handle)
            if expires_at is not None and expires_at <= now and state.pinned:
                await self._backend.unpin(prompt.handle)
                self._states[prompt.handle] = WarmState("warm", EXPIRED, state.num_cached_tokens)

    def _in_order(self) -> Sequence[WarmPrompt]:
        """Pinned ones first, then by priority."""
        return sorted(self._prompts.values(), key=lambda prompt: (not prompt.retention.pin, -prompt.retention.priority))


def refusal_text(outcome: PinOutcome) -> str:
    """Say with numbers why a prompt is not pinned."""
    return (
        f"{outcome.refusal}: the prompt has {outcome.num_blocks} blocks; {outcome.pinned_blocks} of at most "
        f"{outcome.pinned_blocks_limit} are pinned, {outcome.shared_blocks} of at most {outcome.shared_blocks_limit} shared"
    )
