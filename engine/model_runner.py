"""Owns the device: the model, the KV pool, and the one function that runs a step.

Knows nothing of queues, prefixes or who asked. Everything that came out of sizing the pool is a property here, so that
the scheduler and the messages to the gateway are built from it.
"""

from __future__ import annotations

import importlib.util
import itertools
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from engine.batch import ScheduledRequest, SchedulerOutput, StepOutput
from engine.config import EngineConfig
from engine.device import to_device
from engine.errors import ConfigError
from engine.graphs import Capture, DecodeGraphs, capture_cuda
from engine.inputs import build_inputs
from engine.kv_cache import KVCache, choose_num_blocks, kv_layout, num_open_blocks
from engine.kv_layout import SKIP_AUTO, format_layers, parse_skip_layers
from engine.kv_probe import key_outlier_ratios, outlier_layers
from engine.loader import choose_device, choose_dtype, load_model
from engine.logprobs import measure_logprobs, measure_prompts, read_logprobs, read_prompts
from engine.memory_check import disagreements, tensor_bytes
from engine.memory_plan import default_num_seqs
from engine.messages import SamplingParams
from engine.model_config import ModelConfig, lean_config
from engine.model_store import weight_digest
from engine.models.interface import Model
from engine.open_blocks import OpenBlocks
from engine.sampler import NOT_FINITE, Sampler
from engine.weight_format import INT8, NONE, NUMBA_HEADS, choose_quantization
from kernels import ops
from kernels.plan import IntArray, StepPlan
from kernels.quant import parse_kv_format

ROW_TILE = 16
"""Rows of every product in deterministic mode: a decode step of one computes as many, a prompt's chunk loops."""


class ModelRunner:
    """A loaded model with its pool, warmed up."""

    def __init__(
        self,
        config: EngineConfig,
        *,
        sampler: Sampler | None = None,
        num_threads: int | None = None,
        capture: Capture | None = None,
    ) -> None:
        """Load the model and allocate the pool.

        Args:
            config: of the engine.
            sampler: chooses tokens; a test may force them or look at the logits.
            num_threads: of torch on the CPU, for the whole process; None: one for each physical core we may use.
            capture: how decode steps become graphs; None: as CUDA graphs on a GPU, not at all elsewhere.

        Raises:
            ModelLoadError: the folder's files are not those of a model that can run here.
            ConfigError: an option asks for more than the model or the machine has.
        """
        torch.set_num_threads(num_threads or physical_cores())
        folder = Path(config.model_path)
        self.config = config
        self.device = choose_device(config.device)
        self.dtype = choose_dtype(config.dtype, self.device)
        self.warnings: list[str] = []
        """Said once at start, for people."""
        self._sampler = sampler or Sampler()
        self._format = parse_kv_format(config.cache.kv_cache_dtype)
        self._is_deterministic = config.scheduler.deterministic
        self.quantization = NONE
        """`none` or `int8`: of the weights."""
        self._model = self._load(folder)
        self.model_config = self._model.config
        per_channel = self._format.per_channel_keys
        self._backend = choose_backend(self.device, self.model_config.head_dim, per_channel=per_channel)
        if self._is_deterministic and (self._backend == "torch" or not isinstance(self.model_config, ModelConfig)):
            raise ConfigError(
                f"--deterministic: wanted a model with a lean forward on numba's or Triton's kernels, got "
                f"{self.model_config.architecture} with --kv-cache-dtype {self._format.name} on {self._backend}'s, whose bits "
                "depend on the batch"
            )
        if per_channel and self._backend == "torch":
            self.warnings.append(f"{self._format.name} runs on torch's kernels here, which are slower than numba's")
        self.kv_layout = kv_layout(config, self.model_config, self.dtype, self._skipped_layers())
        if (
            capture is None
            and self.device.type == "cuda"
            and not (config.enforce_eager or per_channel or self._is_deterministic)
        ):
            capture = capture_cuda
        int8_weights = self.quantization == INT8
        self._num_blocks = choose_num_blocks(
            config, self.model_config, self.kv_layout, self.device, int8_weights=int8_weights
        )
        self._cache = KVCache.allocate(
            self.kv_layout,
            num_blocks=self._num_blocks + (capture is not None),  # one more, for the padding of graphs
            dtype=self.dtype,
            device=self.device,
            num_open=num_open_blocks(config, self.kv_layout),
        )
        self._open_blocks: OpenBlocks | None = None
        if num_open := num_open_blocks(config, self.kv_layout):
            self._open_blocks = OpenBlocks(num_open, config.cache.block_size)
        self.max_model_len = self._limit_length()
        self.warnings += disagreements(
            self.model_config,
            self.kv_layout,
            self.device,
            int8_weights=int8_weights,
            num_blocks=self._cache.num_blocks,
            weights=tensor_bytes(self._model),
            kv_cache=self._cache.num_bytes,
        )
        self._weight_digest = weight_digest(folder)
        self._graphs: DecodeGraphs | None = None
        self._warm_up()
        if capture is not None:
            self._graphs = self._capture(capture)

    @property
    def num_blocks(self) -> int:
        """Blocks in the pool."""
        return self._num_blocks

    @property
    def max_num_seqs(self) -> int:
        """Requests that run at the same time: as asked for, else the chats that the pool holds."""
        scheduler = self.config.scheduler
        return scheduler.max_num_seqs or default_num_seqs(
            self.kv_layout,
            num_blocks=self.num_blocks,
            max_model_len=self.max_model_len,
            max_num_batched_tokens=scheduler.max_num_batched_tokens,
        )

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
            "model_impl": "lean" if isinstance(self.model_config, ModelConfig) else "transformers",
            "dtype": _name(self.dtype),
            "quantization": self.quantization,
            "kv_cache_dtype": self._format.name if self._format.quantized else _name(self.dtype),
            "kv_skip_layers": format_layers(self.kv_layout.skipped_layers),
            "block_size": str(self.config.cache.block_size),
            "rope": self.model_config.rope_text,
            "adapter": "",
        }

    @torch.inference_mode()
    def execute(self, output: SchedulerOutput) -> StepOutput:
        """Perform the copies, run the model over the scheduled tokens and choose the next ones.

        A request with a key, value or logit that is not finite fails alone.
        """
        open_slots = self._begin_step(output)
        if not output.requests:
            return StepOutput({})
        logits, bad = self._forward(output.requests, open_slots)
        sampled = [request for request in output.requests if request.sample]
        logits, scored = logits[: len(sampled)], logits[len(sampled) :]
        tokens = self._sampler.sample(logits, sampled) if sampled else bad.new_empty(0, dtype=torch.int64)
        logprobs, prompts = measure_logprobs(logits, tokens, sampled), measure_prompts(scored, output.requests)
        answers = torch.cat((tokens, bad.long())).tolist()  # the one time that a step waits for the device
        chosen, failed = _outcome(output.requests, answers[: len(sampled)], answers[len(sampled) :])
        return StepOutput(
            chosen, failed, read_logprobs(logprobs, sampled), read_prompts(prompts, output.requests, failed)
        )

    def _begin_step(self, output: SchedulerOutput) -> IntArray | None:
        """Perform the copies; return where the blocks that the step writes to are open, if the format has such."""
        if self._open_blocks is None:
            self._cache.copy(output.copies)
            return None
        step = self._open_blocks.begin_step(output)
        self._cache.copy(output.copies, step.copies)
        return step.slots

    def _forward(
        self, requests: list[ScheduledRequest], open_slots: IntArray | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits [num_sampled + num_scored, vocab_size] in fp32, and [num_tokens] bool: rows whose key or value cannot be cached."""
        inputs = build_inputs(requests, self.config.cache.block_size)
        if self._graphs is not None and self._graphs.fits(requests):
            return self._graphs.run(inputs)
        batch = replace(inputs.paged, open_slots=open_slots)
        plans = self._cache.plan_step(
            batch,
            backend=self._backend,
            deterministic=self._is_deterministic,
            precise=self.quantization == NONE,
        )
        arrays = (inputs.input_ids, inputs.positions, np.concatenate((inputs.sample_rows, inputs.scored_rows)))
        together = to_device(np.concatenate(arrays), self.device)
        input_ids, positions, sample_rows = torch.split(together, [len(array) for array in arrays])
        logits = self._model.forward(input_ids, positions, sample_rows, self._cache, plans)
        return logits, bad_rows(plans)

    def _load(self, folder: Path) -> Model:
        """The lean forward where it knows the model, else the modules of transformers."""
        if (lean := lean_config(folder, self.config.model_impl)) is not None:
            kv_layout(self.config, lean, self.dtype, frozenset())  # refuse what does not fit before the load
            config = self.config
            self.quantization = choose_quantization(config.quantization, lean, dtype=config.dtype, device=self.device)
            return load_model(
                folder,
                lean,
                dtype=self.dtype,
                device=self.device,
                max_position=lean.max_position,
                rotate_values=self._format.rotated,
                quantization=self.quantization,
                row_tile=ROW_TILE if self._is_deterministic else None,
            )
        if self.config.quantization == INT8:
            raise ConfigError(
                "--quantization: got 'int8', which the modules of transformers do not have; wanted 'none'"
            )
        from engine.models.generic import load_generic  # slow to import, and most models do without

        model = load_generic(folder, dtype=self.dtype, device=self.device)
        self.warnings.append(
            f"{model.config.architecture} runs in the modules of transformers, slower than a lean forward"
        )
        return model

    @torch.inference_mode()
    def _capture(self, capture: Capture) -> DecodeGraphs | None:
        """Capture decode steps; None, and a warning, where the model cannot be captured."""
        try:
            return DecodeGraphs(
                self._model,
                self._cache,
                backend=self._backend,
                max_num_seqs=self.max_num_seqs,
                max_blocks=-(-self.max_model_len // self.config.cache.block_size),
                scratch_block=self._num_blocks,
                capture=capture,
            )
        except RuntimeError as error:
            why = str(error).partition("\n")[0]
            self.warnings.append(f"decode steps run without CUDA graphs, which this model does not allow: {why}")
            return None

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
        slides = model == self.model_config.sliding_window
        if asked is not None:
            whose = "the model's sliding window: full attention is all there is" if slides else "the model's limit"
            for limit, what in ((model, whose), (pool, "the KV pool; see --num-blocks")):
                if asked > limit:
                    raise ConfigError(f"--max-model-len: got {asked}, wanted at most {limit} ({what})")
            return asked
        if slides:
            self.warnings.append(f"max_model_len is at most {model} tokens, the model's sliding window")
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
                logits, _ = self._forward([request], self._begin_step(SchedulerOutput([request])))
                Sampler().sample(logits, [request]).tolist()
        self._begin_step(SchedulerOutput(ended=["warm-up"]))
        self._cache.clear_blocks([0, 1])


def bad_rows(plans: Sequence[StepPlan]) -> torch.Tensor:
    """Return [num_tokens] bool: rows that some layer could not store."""
    return torch.stack([ops.bad_rows(plan) for plan in dict.fromkeys(plans)]).any(dim=0)


def _outcome(
    requests: Sequence[ScheduledRequest], tokens: list[int], bad: list[int]
) -> tuple[dict[str, int], dict[str, str]]:
    """Give each request its token, or the reason why its numbers cannot be used."""
    chosen: dict[str, int] = {}
    failed: dict[str, str] = {}
    rows, left = iter(bad), iter(tokens)
    for request in requests:
        token = next(left) if request.sample else None
        if any(list(itertools.islice(rows, request.num_new_tokens))):
            failed[request.request_id] = "the model gave a key or value that is not finite"
        elif token == NOT_FINITE:
            failed[request.request_id] = "the model gave a logit that is not finite"
        elif token is not None:
            chosen[request.request_id] = token
    return chosen, failed


def choose_backend(device: torch.device, head_dim: int, *, per_channel: bool = False) -> str:
    """Return the kernels: Triton on a GPU; on a CPU numba's, where it is installed and takes such a cache, else torch's."""
    if device.type == "cuda":
        return "triton"
    takes = head_dim in NUMBA_HEADS and not per_channel
    return "numba" if takes and importlib.util.find_spec("numba") else "torch"


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
