"""The paged KV cache: its size, its memory, and the copies that the prefix cache orders."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from engine.config import EngineConfig
from engine.errors import ConfigError
from engine.kv_layout import KVLayout
from engine.memory_plan import MAX_NUM_SEQS, largest_step_bytes
from engine.model_config import ModelShape
from kernels import ops
from kernels.layout import LayerKV
from kernels.plan import PagedBatch, StepPlan
from kernels.quant import KVFormat, parse_kv_format
from prefixcache.interface import CopyOp

_CPU_SHARE = 0.20  # of the memory that is available: the machine is somebody's laptop
_CPU_MAX_BYTES = 2 << 30


@dataclass(frozen=True, slots=True)
class KVCache:
    """Keys and values of all layers, zeroed."""

    layers: tuple[LayerKV, ...]

    @classmethod
    def allocate(
        cls, layout: KVLayout, *, num_blocks: int, dtype: torch.dtype, device: torch.device, num_open: int = 0
    ) -> KVCache:
        """Allocate the pool; layers that are skipped are unquantized.

        Args:
            layout: shape and format.
            num_blocks: blocks in the pool.
            dtype: of what is not quantized.
            device: of the pool.
            num_open: per_channel only: blocks that may be open at the same time.

        Raises:
            ConfigError: there is not enough memory.
        """
        quantized, plain = parse_kv_format(layout.kv_cache_dtype), parse_kv_format("auto")
        formats = (plain if index in layout.skipped_layers else quantized for index in range(layout.num_layers))
        zeros = functools.partial(torch.zeros, device=device)
        try:
            return cls(tuple(_allocate_layer(layout, kind, num_blocks, num_open, dtype, zeros) for kind in formats))
        except (RuntimeError, MemoryError) as error:
            size = num_blocks * layout.block_bytes
            raise ConfigError(f"--num-blocks: {num_blocks} blocks need {size / 2**30:.1f} GiB: {error}") from error

    @property
    def num_blocks(self) -> int:
        """Blocks in the pool."""
        return self.layers[0].key.shape[0]

    @property
    def num_bytes(self) -> int:
        """Bytes that are allocated, scales included."""
        opened = (layer.key_open.nbytes for layer in self.layers if layer.key_open is not None)
        return sum(tensor.nbytes for layer in self.layers for tensor in layer.tensors) + sum(opened)

    def plan_step(
        self, batch: PagedBatch, *, backend: str, deterministic: bool = False, precise: bool = True
    ) -> tuple[StepPlan, ...]:
        """Return a plan for each layer: one plan for all layers of a format. Options as of `ops.plan_step`."""
        first = {layer.format: layer for layer in self.layers}
        plans = {
            kind: ops.plan_step(batch, layer, backend=backend, deterministic=deterministic, precise=precise)
            for kind, layer in first.items()
        }
        return tuple(plans[layer.format] for layer in self.layers)

    def copy(self, copies: Sequence[CopyOp], open_copies: Sequence[tuple[int, int]] = ()) -> None:
        """Perform the copies in order; open_copies: (src, dst) slots of open blocks."""
        if copies:
            ops.copy_blocks(self.layers, [(op.src, op.dst, op.num_tokens) for op in copies], open_copies)

    def clear_blocks(self, block_ids: list[int]) -> None:
        """Zero these blocks in every layer."""
        for layer in self.layers:
            for tensor in layer.tensors:
                tensor[block_ids] = 0


def kv_layout(config: EngineConfig, model: ModelShape, dtype: torch.dtype, skipped: frozenset[int]) -> KVLayout:
    """Return the shape of the cache that these options ask for.

    Raises:
        ConfigError: the format does not fit the model's heads.
    """
    try:
        return KVLayout(
            num_layers=model.num_layers,
            num_kv_heads=model.num_kv_heads,
            head_dim=model.head_dim,
            kv_cache_dtype=config.cache.kv_cache_dtype,
            skipped_layers=skipped,
            block_size=config.cache.block_size,
            itemsize=dtype.itemsize,
        )
    except ValueError as error:
        raise ConfigError(f"--kv-cache-dtype: {error}") from error


def choose_num_blocks(
    config: EngineConfig, model: ModelShape, layout: KVLayout, device: torch.device, *, int8_weights: bool = False
) -> int:
    """Return the blocks of the pool: as asked for, else what the device can spare and the requests can use.

    Raises:
        ConfigError: not even two blocks fit, or not those that were asked for.
    """
    if (asked := _asked_num_blocks(config, layout, device)) is not None:
        return asked
    largest_step = largest_step_bytes(
        model,
        itemsize=layout.itemsize,
        int8=int8_weights,
        num_tokens=config.scheduler.max_num_batched_tokens,
        num_sampled=config.scheduler.max_num_seqs or MAX_NUM_SEQS,
    )
    opened = num_open_blocks(config, layout) * layout.open_block_bytes
    affordable = (_spare_bytes(config, device, largest_step) - opened) // layout.block_bytes
    longest = min(config.max_model_len or model.max_position, model.max_position)
    # one block more a request: its last block may hold one token, and a copy needs one
    useful = (config.scheduler.max_num_seqs or MAX_NUM_SEQS) * (-(-longest // layout.block_size) + 1)
    num_blocks = int(min(affordable, useful))
    if num_blocks < 2:
        raise ConfigError("--num-blocks: the free memory does not hold two blocks of KV cache")
    return num_blocks


def num_open_blocks(config: EngineConfig, layout: KVLayout) -> int:
    """Return the blocks that this engine may have open at the same time."""
    limits = config.scheduler
    num_requests = limits.max_num_seqs or MAX_NUM_SEQS
    return layout.num_open_blocks(num_requests=num_requests, step_tokens=limits.max_num_batched_tokens)


def _asked_num_blocks(config: EngineConfig, layout: KVLayout, device: torch.device) -> int | None:
    """Return the blocks that one of two options asks for, if they are there; None: neither was given."""
    asked, flag = config.cache.num_blocks, "--num-blocks"
    if config.cache.kv_cache_memory is not None:
        asked, flag = config.cache.kv_cache_memory // layout.block_bytes, "--kv-cache-memory"
    if asked is None:
        return None
    if asked < 2:
        raise ConfigError(f"{flag}: got {asked} blocks of {layout.block_bytes:,} bytes, wanted at least 2")
    size, free = asked * layout.block_bytes, _free_bytes(device)
    if size > free:
        gib = f"{asked} blocks need {size / 2**30:.1f} GiB"
        raise ConfigError(f"{flag}: {gib}, and {free / 2**30:.1f} GiB are free on {device.type}")
    return asked


def _allocate_layer(
    layout: KVLayout,
    kind: KVFormat,
    num_blocks: int,
    num_open: int,
    dtype: torch.dtype,
    zeros: Callable[..., torch.Tensor],
) -> LayerKV:
    block = (layout.num_kv_heads, layout.block_size, layout.head_dim)
    stored = dtype if not kind.quantized else torch.int8
    key, value = (zeros((num_blocks, *block), dtype=stored) for _ in range(2))
    if not kind.quantized:
        return LayerKV(kind, key, value)
    token_scales = (num_blocks, *block[:2], kind.num_groups(layout.head_dim))
    channel_scales = (num_blocks, layout.num_kv_heads, layout.head_dim)
    return LayerKV(
        kind,
        key,
        value,
        key_scale=zeros(channel_scales if kind.per_channel_keys else token_scales, dtype=torch.float16),
        value_scale=zeros(token_scales, dtype=torch.float16),
        key_open=zeros((num_open, *block), dtype=dtype) if kind.per_channel_keys else None,
    )


def _spare_bytes(config: EngineConfig, device: torch.device, largest_step: int) -> int:
    """Bytes for the pool, beside the weights that are loaded already and the activations of the largest step."""
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        return max(0, int(config.cache.gpu_memory_utilization * total) - (total - free) - largest_step)
    return min(int(_CPU_SHARE * available_memory()), _CPU_MAX_BYTES)


def _free_bytes(device: torch.device) -> int:
    return int(torch.cuda.mem_get_info(device)[0]) if device.type == "cuda" else available_memory()


def available_memory(meminfo: Path = Path("/proc/meminfo"), cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Return the bytes of RAM that this process can still get, the container's limit included."""
    try:
        fields = dict(line.split(":", 1) for line in meminfo.read_text(encoding="utf-8").splitlines() if ":" in line)
        available = int(fields["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError):
        available = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    try:
        limit = int((cgroup / "memory.max").read_text(encoding="utf-8"))
        used = int((cgroup / "memory.current").read_text(encoding="utf-8"))
    except (OSError, ValueError):  # no cgroup v2, or the limit is "max"
        return available
    return min(available, max(limit - used, 0))
