"""The `Backend` over worker processes: one life after another, with a back-off that doubles while lives are short."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import logging
import math
import shutil
import sys
import tempfile
import time
from pathlib import Path

from engine.config import EngineConfig
from engine.messages import EngineReady
from gateway.backends.base import BackendSnapshot, BackendUnavailableError, GenerationRequest, ModelInfo
from gateway.backends.control import CacheOptions
from gateway.backends.local.earlier_lives import EarlierLives
from gateway.backends.local.generation import LocalGeneration
from gateway.backends.local.life import WorkerLife
from gateway.backends.local.orders import WorkerOrders
from prefixcache.interface import PrefixCacheConfig

logger = logging.getLogger(__name__)

QUIET_SECONDS = 10.0
"""A worker that has been silent for longer counts as not ready, though it is still given time to answer."""
FIRST_START_SECONDS = 10.0
"""What a start is said to take before one has been seen."""
WORKER_COMMAND = (sys.executable, "-m", "engine.worker")


@dataclasses.dataclass(frozen=True, slots=True)
class Supervision:
    """How patient the supervisor is, in seconds."""

    start_timeout: float = 600.0
    """From the start of the process to its first word; loading a large model takes minutes."""
    heartbeat_timeout: float = 60.0
    """Without any word; a step of a large model on a slow machine takes long, but not so long."""
    first_backoff: float = 0.5
    """Before the first restart."""
    max_backoff: float = 30.0
    """Before any restart."""
    long_life: float = 60.0
    """A life that lasted longer resets the back-off."""


class LocalBackend(WorkerOrders):
    """A supervised worker process behind the `Backend` protocol."""

    def __init__(
        self,
        config: EngineConfig,
        *,
        supervision: Supervision | None = None,
        command: tuple[str, ...] = WORKER_COMMAND,
    ) -> None:
        self._config = config
        self._supervision = supervision or Supervision()
        self._command = command
        self._options: CacheOptions | None = None
        self._lives = EarlierLives()
        self._life: WorkerLife | None = None
        self._task: asyncio.Task[None] | None = None
        self._state = "stopped"
        self._changed = asyncio.Condition()
        self._backoff = self._supervision.first_backoff
        self._start_seconds = FIRST_START_SECONDS
        self.num_restarts = 0

    async def start(self) -> None:
        """Begin to come up, in the background."""
        self._state = "starting"
        self._task = asyncio.create_task(self._supervise())

    async def stop(self) -> None:
        """End the worker and with it every generation."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._set_state("stopped")

    def ready(self) -> bool:
        """True while requests are served and the worker shows signs of life."""
        return self._life is not None and self._life.ready is not None and self._life.silent_seconds < QUIET_SECONDS

    def state(self) -> str:
        """Return `stopped`, `starting`, `ready`, `restarting: why` or `failed: why`; the last is final."""
        return self._state

    async def wait_settled(self) -> str:
        """Wait until it is ready, failed for good or stopped; return the state."""
        async with self._changed:
            await self._changed.wait_for(lambda: self.ready() or self._state.startswith(("failed", "stopped")))
        return self._state

    @property
    def worker_process_id(self) -> int | None:
        """Of the present life."""
        return self._life.process_id if self._life else None

    def model_info(self) -> ModelInfo:
        """Return facts of the running model."""
        life, ready = self._serving()
        return ModelInfo(
            max_model_len=min(ready.max_model_len, life.max_request_tokens or ready.max_model_len),
            block_size=ready.block_size,
            hash_seed=ready.hash_seed,
            hash_epoch=ready.hash_epoch,
            namespace_fields=ready.namespace_fields,
            eos_token_ids=frozenset(ready.eos_token_ids),
            cache=self._cache_config(ready),
            details={
                "dtype": ready.dtype,
                "device": ready.device,
                "num_blocks": ready.num_blocks,
                "kv_bytes_per_token": ready.kv_bytes_per_token,
            },
        )

    def _cache_config(self, ready: EngineReady) -> PrefixCacheConfig:
        """As the worker builds its own."""
        cache = self._config.cache
        return PrefixCacheConfig(
            ready.num_blocks,
            block_size=ready.block_size,
            hash_seed=ready.hash_seed,
            hash_epoch=ready.hash_epoch,
            enabled=cache.enable_prefix_caching,
            reuse_partial_blocks=cache.kv_cache_dtype != "int8/per_channel",
        )

    async def generate(self, request: GenerationRequest) -> LocalGeneration:
        """Wait for admission and return the running generation."""
        life, ready = self._serving()
        self._lives.begin(ready)
        generation = await life.add(request, num_earlier_blocks=self._lives.num_blocks(request))
        self._lives.note(request)
        return generation

    async def snapshot(self) -> BackendSnapshot:
        """Ask the worker between two of its steps."""
        answer = await self._serving()[0].snapshot()
        return BackendSnapshot(answer.blocks, answer.counters, answer.running, answer.waiting)

    async def set_cache_options(
        self, *, max_shared_ratio: float | None = None, growth_reserve: int | None = None
    ) -> CacheOptions:
        """Change what may change while serving; later lives of the worker begin with it."""
        options = await super().set_cache_options(max_shared_ratio=max_shared_ratio, growth_reserve=growth_reserve)
        self._options = options
        return options

    def _present_config(self) -> EngineConfig:
        if self._options is None:
            return self._config
        cache, ratio = self._config.cache, self._options.max_shared_ratio
        cache = dataclasses.replace(
            cache,
            max_shared_ratio=ratio,
            max_pinned_ratio=min(cache.max_pinned_ratio, ratio),
            growth_reserve=self._options.growth_reserve,
        )
        return dataclasses.replace(self._config, cache=cache)

    def _present_life(self) -> WorkerLife:
        return self._serving()[0]

    def _serving(self) -> tuple[WorkerLife, EngineReady]:
        if self._life is None or self._life.ready is None:
            why = f"the engine does not serve now ({self._state})"
            raise BackendUnavailableError(why, retry_after_seconds=self._retry_after_seconds())
        return self._life, self._life.ready

    def _retry_after_seconds(self) -> int:
        """When the next life may serve, as far as one can tell."""
        return math.ceil(self._backoff + self._start_seconds)

    async def _set_state(self, state: str) -> None:
        async with self._changed:
            self._state = state
            self._changed.notify_all()

    async def _supervise(self) -> None:
        folder = Path(tempfile.mkdtemp(prefix="prefixgate-"))  # sockets in a folder that only this user may enter
        limits = self._supervision
        try:
            for number in itertools.count():
                began = time.monotonic()
                why, fatal = await self._live(f"ipc://{folder}/{number}")
                if fatal is not None:
                    logger.error("the engine cannot start: %s", fatal)
                    await self._set_state(f"failed: {fatal}")
                    return
                if time.monotonic() - began > limits.long_life:
                    self._backoff = limits.first_backoff
                logger.error("%s; restarting in %.1f s", why, self._backoff)
                await self._set_state(f"restarting: {why}")
                await asyncio.sleep(self._backoff)
                self._backoff = min(2 * self._backoff, limits.max_backoff)
                self.num_restarts += 1
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    async def _live(self, endpoint: str) -> tuple[str, str | None]:
        """Live one life; return why it ended and, if another one would end the same way, why that is."""
        life = WorkerLife(
            endpoint,
            start_timeout=self._supervision.start_timeout,
            heartbeat_timeout=self._supervision.heartbeat_timeout,
            retry_after_seconds=self._retry_after_seconds(),
        )
        self._life = life
        announce = asyncio.create_task(self._announce(life))
        try:
            return await life.run(self._command, self._present_config()), life.fatal
        finally:
            self._life = None
            announce.cancel()

    async def _announce(self, life: WorkerLife) -> None:
        began = time.monotonic()
        await life.became_ready.wait()
        self._start_seconds = time.monotonic() - began
        if life.ready is not None:
            for warning in life.ready.warnings:
                logger.warning("%s", warning)
            await self._set_state("ready")
