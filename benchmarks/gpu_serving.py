"""The service of 100 chats on one GPU capped at 24 GiB, through the engine in process, with random weights of 7B shape.

Chats of 2,048 tokens of which 1,024 are shared, beside 8 KV heads: contiguous in 16 bits they do not fit, which `plan`
tells; paged, with the shared prefix, and in int8 they are served, and their time between tokens is measured.
"""

from __future__ import annotations

import gc
import json
import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from unittest import mock

import numpy as np
import torch

from benchmarks.gpu_rows import Row, at_least, at_most
from benchmarks.timings import quantile
from engine.config import CacheConfig, EngineConfig, SchedulerConfig
from engine.llm_engine import LLMEngine
from engine.memory_plan import FixedBytes, MemoryPlan, Workload
from engine.messages import StepOutputs
from engine.model_config import ModelConfig
from engine.model_runner import ModelRunner
from engine.models import ARCHITECTURES
from engine.models.llama import Change
from engine.plan_variants import variants
from tests.support.engine_factory import add_request

GIB = 2**30
INTER_TOKEN_BOUND = 0.025
"""Seconds at the 99th percentile, all chats running."""
_ARCHITECTURE = "MistralForCausalLM"


@dataclass(frozen=True, slots=True)
class Service:
    """What is served."""

    shape: dict[str, int]
    """Of config.json."""
    num_chats: int
    context_tokens: int
    shared_tokens: int
    answer_tokens: int
    memory_bytes: int

    @property
    def config_json(self) -> str:
        """A model that is described, and has no weights."""
        rest = {"architectures": [_ARCHITECTURE], "model_type": "mistral", "rms_norm_eps": 1e-5, "rope_theta": 1e6}
        return json.dumps(self.shape | rest | {"tie_word_embeddings": False, "eos_token_id": 2, "hidden_act": "silu"})


ARTICLE = Service(
    shape={
        "num_hidden_layers": 32,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 32000,
        "max_position_embeddings": 4096,
    },
    num_chats=100,
    context_tokens=2048,
    shared_tokens=1024,
    answer_tokens=128,
    memory_bytes=24 * GIB,
)
TOY = Service(
    shape={
        "num_hidden_layers": 2,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 500,
        "max_position_embeddings": 512,
    },
    num_chats=6,
    context_tokens=192,
    shared_tokens=96,
    answer_tokens=16,
    memory_bytes=GIB,
)


def serve(device: torch.device) -> Iterator[Row]:
    """The article's service; bars for its last row."""
    torch.cuda.set_per_process_memory_fraction(ARTICLE.memory_bytes / torch.cuda.mem_get_info(device)[1], device)
    try:
        yield from _serve(ARTICLE, device)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, device)


def serve_briefly(device: torch.device) -> Iterator[Row]:
    """The same code on a toy."""
    yield from _serve(TOY, device)


def _serve(service: Service, device: torch.device) -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "config.json").write_text(service.config_json)
        config = _engine_config(service, folder, device)
        dtype = torch.bfloat16
        shape = ModelConfig.from_folder(folder)
        model = ARCHITECTURES[_ARCHITECTURE](shape, _RandomWeights(device, dtype), max_position=shape.max_position)
        with mock.patch("engine.model_runner.load_model", return_value=model):
            cases = (
                ("16-bit paged", replace(config, cache=replace(config.cache, enable_prefix_caching=False))),
                ("+ shared prefix", config),
                ("+ int8/hadamard", replace(config, cache=replace(config.cache, kv_cache_dtype="int8/hadamard"))),
            )
            for index, (what, case) in enumerate(cases):
                runner = ModelRunner(case)
                if index == 0:
                    yield _contiguous_row(service, runner)
                is_last = index == len(cases) - 1
                yield from _chat(what, service, case, runner, bars=is_last and device.type == "cuda")
                del runner
                gc.collect()


def _chat(what: str, service: Service, config: EngineConfig, runner: ModelRunner, *, bars: bool) -> Iterator[Row]:
    """All chats at once, twice: the first pass compiles what there is to compile."""
    engine = LLMEngine(config, runner)
    _run(engine, service, "warm-up")
    num_preempted = engine.scheduler.counters.preemptions
    if runner.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    most_running, gaps, ttft_p99 = _run(engine, service, what)
    chats, tokens = f"{what}: chats that ran at once", f"{what}: p99 between tokens, all running"
    yield at_least(chats, most_running, service.num_chats) if bars else Row(chats, most_running)
    p99 = 1e3 * quantile(gaps, 0.99) if gaps else None  # None: they never ran all at once
    if bars:
        yield at_most(tokens, float("nan") if p99 is None else p99, 1e3 * INTER_TOKEN_BOUND, "ms")
    else:
        yield Row(tokens, p99, "ms")
    yield Row(f"{what}: median between tokens", 1e3 * statistics.median(gaps) if gaps else None, "ms")
    yield Row(f"{what}: p99 TTFT, all sent at once", ttft_p99, "s")
    yield Row(f"{what}: preemptions", engine.scheduler.counters.preemptions - num_preempted)
    if runner.device.type == "cuda":
        peak = torch.cuda.max_memory_allocated() / GIB
        yield at_most(f"{what}: peak memory allocated", peak, service.memory_bytes / GIB, "GiB")


def _run(engine: LLMEngine, service: Service, name: str) -> tuple[int, list[float], float]:
    """Return the most chats that ran at once, gaps between tokens while no prompt was computed, and the p99 TTFT."""
    rng = np.random.default_rng(len(name))
    vocab = service.shape["vocab_size"]
    shared = rng.integers(10, vocab, service.shared_tokens).tolist()
    num_own = service.context_tokens - service.shared_tokens - service.answer_tokens
    start = time.perf_counter()
    for index in range(service.num_chats):
        own = rng.integers(10, vocab, num_own).tolist()
        add_request(
            engine, f"{name} {index}", [*shared, *own], max_tokens=service.answer_tokens, temperature=0, ignore_eos=True
        )
    last: dict[str, float] = {}
    firsts, gaps, most_running = [], [], 0
    while engine.has_work:
        messages = engine.step()
        now = time.perf_counter()
        most_running = max(most_running, engine.scheduler.num_running)
        new = [out.request_id for message in messages if isinstance(message, StepOutputs) for out in message.outputs]
        firsts += [now - start for request_id in new if request_id not in last]
        # while chats still wait or prefill, a gap has their chunks in it: that is TTFT's row
        if len(new) == most_running and not engine.scheduler.num_waiting:
            gaps += [now - last[request_id] for request_id in new if request_id in last]
        last.update(dict.fromkeys(new, now))
    return most_running, gaps, quantile(firsts, 0.99)


def _contiguous_row(service: Service, runner: ModelRunner) -> Row:
    """What `plan` says of a buffer of the full length for each chat, beside these weights."""
    fixed = FixedBytes.of_model(
        runner.model_config,
        itemsize=2,
        max_num_batched_tokens=runner.config.scheduler.max_num_batched_tokens,
        concurrency=service.num_chats,
    )
    load = Workload(service.num_chats, service.context_tokens, service.shared_tokens)
    contiguous = variants(MemoryPlan(runner.kv_layout, load, fixed, service.memory_bytes))[0].full
    verdict = "fits" if contiguous.fits else "does not fit"
    return Row(f"16-bit contiguous, by plan, {verdict}: chats that would", contiguous.max_concurrency)


def _engine_config(service: Service, folder: Path, device: torch.device) -> EngineConfig:
    """The pool is what the cap leaves beside the weights."""
    on_gpu = device.type == "cuda"
    share = service.memory_bytes / torch.cuda.mem_get_info(device)[1] if on_gpu else 0.85
    return EngineConfig(
        model_path=str(folder),
        dtype="bfloat16",
        device=device.type,
        cache=CacheConfig(gpu_memory_utilization=share, kv_skip_layers="none", num_blocks=None if on_gpu else 64),
        scheduler=SchedulerConfig(max_num_seqs=2 * service.num_chats),
    )


class _RandomWeights:
    """See `engine.models.llama.Weights`. Random is as fast as trained, and a rotation of random is random."""

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        self.device, self._dtype = device, dtype

    def take(self, name: str, *shape: int, change: Change | None = None) -> torch.Tensor:  # noqa: ARG002
        """Norms are ones, all else small."""
        if name.endswith("norm.weight"):
            return torch.ones(shape, dtype=self._dtype, device=self.device)
        return torch.randn(shape, dtype=self._dtype, device=self.device) * shape[-1] ** -0.5
