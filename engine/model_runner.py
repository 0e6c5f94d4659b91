"""Owns the device: the model, the KV pool, and the one function that runs a step.

Knows nothing of queues, prefixes or who asked. Everything that came out of sizing the pool is a property here, so that
the scheduler and the messages to the gateway are built from it.
"""

from __future__ import annotations

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
from engine.kv_cache import KVCache, bytes_per_token, choose_num_blocks
from engine.loader import choose_device, choose_dtype, load_model
from engine.messages import SamplingParams
from engine.model_config import ModelConfig
from engine.model_store import weight_digest
from engine.sampler import Sampler
from kernels import ops


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
        self._model = load_model(
            folder,
            self.model_config,
            dtype=self.dtype,
            device=self.device,
            max_position=self.model_config.max_position,
        )
        self._cache = KVCache.allocate(
            self.model_config,
            num_blocks=choose_num_blocks(config, self.model_config, self.dtype, self.device),
            block_size=config.cache.block_size,
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
        """Bytes of the pool that one token takes."""
        return bytes_per_token(self.model_config, self.dtype)

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
            "kv_cache_dtype": _name(self.dtype),
            "block_size": str(self.config.cache.block_size),
            "rope": json.dumps(asdict(self.model_config.rope), sort_keys=True),
            "adapter": "",
        }

    @torch.inference_mode()
    def execute(self, output: SchedulerOutput) -> StepOutput:
        """Perform the copies, run the model over the scheduled tokens and choose the next ones.

        A request whose logits are not finite fails alone.
        """
        self._cache.copy(output.copies)
        if not output.requests:
            return StepOutput({})
        logits = self._forward(output.requests)
        sampled = [request for request in output.requests if request.sample]
        if not sampled:
            return StepOutput({})
        tokens = self._sampler.sample(logits, sampled)
        chosen = {request.request_id: token for request, token in zip(sampled, tokens, strict=True)}
        return StepOutput(
            token_ids={request_id: token for request_id, token in chosen.items() if token is not None},
            failed={
                request_id: "the model gave a logit that is not finite"
                for request_id, token in chosen.items()
                if token is None
            },
        )

    def _forward(self, requests: list[ScheduledRequest]) -> torch.Tensor:
        """[num_sampled, vocab_size] in fp32."""
        inputs = build_inputs(requests, self.config.cache.block_size)
        plan = ops.plan_step(inputs.paged, self._cache.keys[0])
        input_ids, positions, sample_rows = (
            torch.from_numpy(array).to(self.device)
            for array in (inputs.input_ids, inputs.positions, inputs.sample_rows)
        )
        return self._model.forward(input_ids, positions, sample_rows, self._cache, plan)

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
                Sampler().sample(self._forward([request]), [request])
        self._cache.clear_blocks([0, 1])


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
