"""Which format weights are kept and multiplied in: what `--quantization` names, and what `auto` is on this machine."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import torch

from engine.errors import ConfigError
from engine.model_config import ModelConfig

NONE, INT8 = "none", "int8"
NUMBA_HEADS = range(16, 257, 16)
"""Channels a head that numba's kernels take."""
_INT8_FLAG = "avx512_vnni"
"""Of the x86 processors that the kernels are written for."""


def choose_quantization(name: str, config: ModelConfig, *, dtype: str, device: torch.device) -> str:
    """Return the format that an option names.

    Args:
        name: `none`, `int8`, or `auto`: int8 where it is fast, unless a dtype was asked for.
        config: of the model.
        dtype: the option, `auto` or a type.
        device: of the model.

    Raises:
        ConfigError: int8 cannot run here.
    """
    if name == NONE or (name == "auto" and dtype != "auto"):
        return NONE
    reason = _obstacle(config, device)
    if reason is not None and name == INT8:
        raise ConfigError(f"--quantization: got 'int8', but {reason}; wanted 'none'")
    return NONE if reason is not None else INT8


def _obstacle(config: ModelConfig, device: torch.device) -> str | None:
    """Say why int8 weights cannot be served, if so."""
    if device.type != "cpu":
        return f"its kernels run on a CPU, not on {device.type}"
    if importlib.util.find_spec("numba") is None:
        return "its kernels need numba, which is not installed"
    if config.head_dim not in NUMBA_HEADS:
        return f"its kernels take heads of {NUMBA_HEADS.step} to {NUMBA_HEADS[-1]} channels in steps of {NUMBA_HEADS.step}, not {config.head_dim}"
    if not cpu_has_int8():
        return f"its kernels need a processor with {_INT8_FLAG}"
    return None


def cpu_has_int8(cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    """Tell whether this processor has the instructions of `kernels.cpu.vnni`."""
    try:
        return _INT8_FLAG in cpuinfo.read_text(encoding="utf-8").split()
    except OSError:
        return False
