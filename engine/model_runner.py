"""Owns the device: the model, the KV pool, and the one function that runs a step.

Knows nothing of queues, prefixes or who asked. Everything that came out of sizing the pool is a property here, so that
the scheduler and the messages to the gateway are built from it.
"""

from __future__ import annotations

import importlib.util
import json
import os
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch

from engine.batch import ScheduledRequest, SchedulerOutput, StepOutput
from engine.config import EngineConfig
from engine.errors import ConfigError
from engine.inputs import build_inputs
from engine.kv_cache import KVCache, choose_num_blocks, kv_layout
from engine.kv_layout import SKIP_AUTO, format_layers, parse_skip_layers
from engine.kv_probe import key_outlier_ratios, outlier_layers
from engine.loader import choose_device, choose_dtype, load_model
from engine.messages import SamplingParams
from engine.model_config import ModelConfig
from engine.model_store import weight_digest
from engine.sampler import Sampler
from engine.weight_format import choose_quantization
from kernels import ops
from kernels.quant import parse_kv_format

_NUMBA_CHANNELS = 16
"""Its kernels take heads of a multiple of this."""


class ModelRunner:
    """A loaded model with its pool, warmed up."""

    def __init__(self, config: EngineConfig, *, sampler: Sampler | None = None, num_threads: int | None = None) -> None:
        """Load the model and allocate the pool.

        Args:
            config: of the engine.
            sampler: chooses tokens; a test may force them or look at the logits.
            num_threads: of torch on the CPU, for the whole process; None: one for each physical core we may use.

        Raises:
            ModelLoadError: the folder's files are not those of a model that can run here.
            ConfigError: an option asks for more than the model or the machine has.
        """
        torch.set_num_threads(num_threads or physical_cores())
        folder = Path(config.model_path)
        self.config = config
        self.device = choose_device(config.device)
        self.dtype = choose_dtype(config.dtype, self.device)
        self.model_config = ModelConfig.from_folder(folder)
        self.warnings: list[str] = []
        """Said once at start, for people."""
        self._sampler = sampler or Sampler()
        self._backend = choose_backend(self.device, self.model_config.head_dim)
        self.quantization = choose_quantization(
            config.quantization, self.model_config, dtype=config.dtype, device=self.device
        )
        """`none` or `int8`: of the weights."""
        self._format = parse_kv_format(config.cache.kv_cache_dtype)
        kv_layout(config, self.model_config, self.dtype, frozenset())  # refuse what does not fit before the load
        if self._format.per_channel_keys:
            raise ConfigError("--kv-cache-dtype: int8/per_channel can be planned and measured, but not served yet")
        self._model = load_model(
            folder,
            self.model_config,
            dtype=self.dtype,
            device=self.device,
            max_position=self.model_config.max_position,
            rotate_values=self._format.rotated,
            quantization=self.quantization,
        )
        self.kv_layout = kv_layout(config, self.model_config, self.dtype, self._skipped_layers())
        self._cache = KVCache.allocate(
            self.kv_layout,
            num_blocks=choose_num_blocks(config, self.model_config, self.kv_layout, self.device),
            dtype=self.dtype,
            device=self.device,
        )
        self.max_model_len = self._limit_length()
        self._weight_digest = weight_digest(folder)
        self._warm_up()

    @property
    def num_blocks(self) -> int:
        """Blocks in the pool."""
        return self._cache.num_blocks

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of the pool that one token takes, scales included."""
        return round(self.kv_layout.bytes_per_token)

    @property
    def eos_token_ids(self) -> frozenset[int]:
        """Tokens that end an answer."""
        return frozenset(self.model_config.eos_token_ids)

    @property
    def vocab_size(self) -> int:
        """Token ids are below this."""
        return self.model_config.vocab_size

    def namespace_fields(self) -> dict[str, str]:
        """Return all that changes the bytes of a cached token; the gateway adds who may see them."""
        return {
            "weights": self._weight_digest,
            "architecture": self.model_config.architecture,
            "dtype": _name(self.dtype),
            "quantization": self.quantization,
            "kv_cache_dtype": self._format.name if self._format.quantized else _name(self.dtype),
            "kv_skip_layers": format_layers(self.kv_layout.skipped_layers),
            "block_size": str(self.config.cache.block_size),
            "rope": json.dumps(asdict(self.model_config.rope), sort_keys=True),
            "adapter": "",
        }

    @torch.inference_mode()
    def execute(self, output: SchedulerOutput) -> StepOutput:
        """Perform the copies, run the model over the scheduled tokens and choose the next ones.

        A request with a key, value or logit that is not finite fails alone.
        """
        self._cache.copy(output.copies)
        if not output.requests:
            return StepOutput({})
        logits, failed = self._forward(output.requests)
        sampled = [request for request in output.requests if request.sample]
        tokens = self._sampler.sample(logits, sampled) if sampled else []
        chosen: dict[str, int] = {}
        for request, token in zip(sampled, tokens, strict=True):
            if token is None:
                failed.setdefault(request.request_id, "the model gave a logit that is not finite")
            elif request.request_id not in failed:
                chosen[request.request_id] = token
        return StepOutput(chosen, failed)

    def _forward(self, requests: list[ScheduledRequest]) -> tuple[torch.Tensor, dict[str, str]]:
        """[num_sampled, vocab_size] in fp32, and the requests whose keys or values cannot be cached, with the reason."""
        inputs = build_inputs(requests, self.config.cache.block_size)
        plans = self._cache.plan_step(inputs.paged, backend=self._backend)
        input_ids, positions, sample_rows = (
            torch.from_numpy(array).to(self.device)
            for array in (inputs.input_ids, inputs.positions, inputs.sample_rows)
        )
        logits = self._model.forward(input_ids, positions, sample_rows, self._cache, plans)
        flags = [ops.bad_rows(plan) for plan in {id(plan): plan for plan in plans}.values()]
        bad = torch.stack(flags).any(dim=0).cpu().numpy()
        failed = {
            request.request_id: "the model gave a key or value that is not finite"
            for request, start, end in zip(
                requests, inputs.paged.query_start_loc, inputs.paged.query_start_loc[1:], strict=False
            )
            if bad[start:end].any()
        }
        return logits, failed

    def _skipped_layers(self) -> frozenset[int]:
        """Read the option, or look for outliers and tell what was found."""
        if not self._format.quantized:
            return frozenset()
        if self.config.cache.kv_skip_layers != SKIP_AUTO:
            try:
                return parse_skip_layers(self.config.cache.kv_skip_layers, num_layers=self.model_config.num_layers)
            except ValueError as error:
                raise ConfigError(f"--kv-skip-layers: {error}") from error
        ratios = key_outlier_ratios(self._model, dtype=self.dtype, device=self.device, backend=self._backend)
        if skipped := outlier_layers(ratios):
            worst = ratios.amax(dim=1)
            found = ", ".join(f"{layer} ({worst[layer]:.0f}x)" for layer in sorted(skipped))
            self.warnings.append(
                f"keys with outliers in layer {found}: they stay in {_name(self.dtype)} (--kv-skip-layers auto)"
            )
        return skipped

    def _limit_length(self) -> int:
        """Return the smaller of the model's limit and the pool, or what was asked for if it is within both."""
        asked, model = self.config.max_model_len, self.model_config.max_position
        pool = self.num_blocks * self.config.cache.block_size
        if asked is not None:
            for limit, what in ((model, "the model's limit"), (pool, "the KV pool; see --num-blocks")):
                if asked > limit:
                    raise ConfigError(f"--max-model-len: got {asked}, wanted at most {limit} ({what})")
            return asked
        if pool < model:
            self.warnings.append(
                f"max_model_len is {pool} tokens, not the model's {model}: the KV pool holds no more ({self.num_blocks} "
                f"blocks of {self.config.cache.block_size}; see --num-blocks)"
            )
        return min(model, pool)

    def _warm_up(self) -> None:
        """Run a prompt and a decode step once, so that no request pays for lazy set-up; leaves the pool zeroed."""
        num_tokens = min(self.config.cache.block_size, self.max_model_len - 1)
        for num_computed, num_new in ((0, num_tokens), (num_tokens, 1)) if num_tokens else ():
            request = ScheduledRequest(
                request_id="warm-up",
                token_ids=np.zeros(num_new, dtype=np.int32),
                num_computed_tokens=num_computed,
                block_ids=[0, 1],
                sampling=SamplingParams(max_tokens=1),
                seed=0,
                sample=True,
            )
            with torch.inference_mode():
                Sampler().sample(self._forward([request])[0], [request])
        self._cache.clear_blocks([0, 1])


def choose_backend(device: torch.device, head_dim: int) -> str:
    """Return the kernels: Triton on a GPU; on a CPU numba's, where it is installed and takes such heads, else torch's."""
    if device.type == "cuda":
        return "triton"
    return "numba" if head_dim % _NUMBA_CHANNELS == 0 and importlib.util.find_spec("numba") else "torch"


def physical_cores() -> int:
    """Return the physical cores this process may run on: two threads on one core only get in each other's way."""
    try:
        cpus = os.sched_getaffinity(0)
    except AttributeError:  # not Linux
        return os.cpu_count() or 1
    topology = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
    try:
        return len({Path(topology.format(cpu)).read_text(encoding="utf-8") for cpu in cpus})
    except OSError:
        return len(cpus)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
