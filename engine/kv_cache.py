"""The paged KV cache: its size, its memory, and the copies that the prefix cache orders."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from engine.config import EngineConfig
from engine.errors import ConfigError
from engine.model_config import ModelConfig
from kernels import ops
from prefixcache.interface import CopyOp

_CPU_SHARE = 0.20  # of the memory that is available: the machine is somebody's laptop
_CPU_MAX_BYTES = 2 << 30
_CUDA_SHARE = 0.85  # of the card, less what is in use


@dataclass(frozen=True, slots=True)
class KVCache:
    """Keys and values of all layers, one allocation each, zeroed."""

    keys: torch.Tensor
    """[num_layers, num_blocks, num_kv_heads, block_size, head_dim]."""
    values: torch.Tensor
    """Like keys."""

    @classmethod
    def allocate(
        cls, model: ModelConfig, *, num_blocks: int, block_size: int, dtype: torch.dtype, device: torch.device
    ) -> KVCache:
        """Allocate the pool.

        Raises:
            ConfigError: there is not enough memory.
        """
        shape = (model.num_layers, num_blocks, model.num_kv_heads, block_size, model.head_dim)
        try:
            return cls(*(torch.zeros(shape, dtype=dtype, device=device) for _ in range(2)))
        except (RuntimeError, MemoryError) as error:
            size = num_blocks * block_size * bytes_per_token(model, dtype)
            raise ConfigError(f"--num-blocks: {num_blocks} blocks need {size / 2**30:.1f} GiB: {error}") from error

    @property
    def num_blocks(self) -> int:
        """Blocks in the pool."""
        return self.keys.shape[1]

    def layer(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the (keys, values) of one layer, each [num_blocks, num_kv_heads, block_size, head_dim]; views."""
        return self.keys[index], self.values[index]

    def copy(self, copies: Sequence[CopyOp]) -> None:
        """Perform the copies in order."""
        if copies:
            ops.copy_blocks(self.keys, self.values, [(op.src, op.dst, op.num_tokens) for op in copies])

    def clear_blocks(self, block_ids: list[int]) -> None:
        """Zero these blocks in every layer."""
        self.keys[:, block_ids] = 0
        self.values[:, block_ids] = 0


def bytes_per_token(model: ModelConfig, dtype: torch.dtype) -> int:
    """Return the bytes that one token takes in all layers, keys and values."""
    return 2 * model.num_layers * model.num_kv_heads * model.head_dim * dtype.itemsize


def choose_num_blocks(config: EngineConfig, model: ModelConfig, dtype: torch.dtype, device: torch.device) -> int:
    """Return the blocks of the pool: as asked for, else what the device can spare and the requests can use.

    Raises:
        ConfigError: not even two blocks fit.
    """
    if config.cache.num_blocks is not None:
        return config.cache.num_blocks
    block_size = config.cache.block_size
    affordable = _spare_bytes(device) // (block_size * bytes_per_token(model, dtype))
    longest = min(config.max_model_len or model.max_position, model.max_position)
    # one block more a request: its last block may hold one token, and a copy needs one
    useful = config.scheduler.max_num_seqs * (-(-longest // block_size) + 1)
    num_blocks = int(min(affordable, useful))
    if num_blocks < 2:
        raise ConfigError("--num-blocks: the free memory does not hold two blocks of KV cache")
    return num_blocks


def _spare_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        return int(_CUDA_SHARE * total) - (total - free)
    return min(int(_CPU_SHARE * available_memory()), _CPU_MAX_BYTES)


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
