"""From the settings to a model on disk and the worker's configuration."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from engine import model_store
from engine.config import CacheConfig, EngineConfig, SchedulerConfig
from engine.errors import ModelNotFoundError
from gateway.backends.local.backend import LocalBackend, Supervision
from gateway.model_files import ModelFiles, ModelFilesError
from gateway.settings import Settings

PULL_COMMAND = (sys.executable, "-m", "engine.commands.models", "pull")


def resolve_model(settings: Settings) -> ModelFiles:
    """Find the model's files; a known alias that is not here yet is fetched first, with progress on stderr.

    Raises: ModelFilesError: no such model, or it could not be fetched.
    """
    try:
        try:
            found = model_store.resolve(settings.model, settings.model_dir)
        except model_store.ModelNotPulledError:
            _pull(settings)  # in a process of its own: it loads torch
            found = model_store.resolve(settings.model, settings.model_dir)
    except ModelNotFoundError as error:
        raise ModelFilesError(str(error)) from error
    return ModelFiles.from_folder(found.folder, found.name, settings.chat_template)


def engine_config(settings: Settings, files: ModelFiles) -> EngineConfig:
    """Return what the worker is started with."""
    return EngineConfig(
        model_path=str(files.folder),
        model_impl=settings.model_impl,
        dtype=settings.dtype,
        quantization=settings.quantization,
        enforce_eager=settings.enforce_eager,
        max_model_len=settings.max_model_len,
        cache=CacheConfig(
            block_size=settings.block_size,
            num_blocks=settings.num_blocks,
            kv_cache_memory=settings.kv_cache_memory,
            gpu_memory_utilization=settings.gpu_memory_utilization,
            kv_cache_dtype=settings.kv_cache_dtype,
            kv_skip_layers=settings.kv_skip_layers,
            max_shared_ratio=settings.max_shared_ratio,
            max_pinned_ratio=settings.max_pinned_ratio,
            growth_reserve=settings.growth_reserve,
        ),
        scheduler=SchedulerConfig(
            max_num_seqs=settings.max_num_seqs,
            max_num_batched_tokens=settings.max_num_batched_tokens,
            prefill_chunk=settings.prefill_chunk,
            long_prefill_token_threshold=settings.long_prefill_token_threshold,
            max_step_seconds=settings.max_step_seconds,
        ),
    )


def local_backend(settings: Settings, files: ModelFiles) -> LocalBackend:
    """Return a worker that serves these files; `start` it."""
    supervision = Supervision(start_timeout=settings.start_timeout, heartbeat_timeout=settings.heartbeat_timeout)
    return LocalBackend(engine_config(settings, files), supervision=supervision)


def _pull(settings: Settings) -> None:
    """Fetch the model in a process group of its own, which ends with us."""
    model_dir = () if settings.model_dir is None else ("--model-dir", str(settings.model_dir))
    command = [*PULL_COMMAND, settings.model, *model_dir]
    on_terminate = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with subprocess.Popen(command, stdout=sys.stderr, start_new_session=True) as child:  # noqa: S603  (no shell)
            try:
                status = child.wait()
            except KeyboardInterrupt as interrupt:
                os.killpg(child.pid, signal.SIGTERM)
                raise ModelFilesError("interrupted; the next start fetches the model again") from interrupt
    finally:
        signal.signal(signal.SIGTERM, on_terminate)
    if status:
        raise ModelFilesError(f"model {settings.model!r} could not be fetched; what went wrong stands above")
