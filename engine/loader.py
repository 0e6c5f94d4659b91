"""From a safetensors folder to a lean model: files, names, shapes, dtype."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from engine.errors import ConfigError, ModelLoadError
from engine.model_config import ModelConfig
from engine.models.interface import Model
from engine.models.llama import Change, LlamaModel
from engine.weight_format import INT8, NONE

_IGNORED_SUFFIXES = ("rotary_emb.inv_freq",)  # old checkpoints carry it; it is computed


def load_model(
    folder: Path,
    config: ModelConfig,
    *,
    dtype: torch.dtype,
    device: torch.device,
    max_position: int,
    rotate_values: bool = False,
    quantization: str = NONE,
) -> Model:
    """Load a folder of safetensors files, single or sharded.

    Args:
        folder: of the model.
        config: its shape.
        dtype: of weights and activations.
        device: of the weights.
        max_position: most tokens of a sequence.
        rotate_values: for a rotated cache; see `engine.models.llama`.
        quantization: `none`, or `int8`, which rotates values in any case; see `engine.models.llama_int8`.

    Raises:
        ModelLoadError: unreadable files, or keys and shapes other than the config's.
    """
    with contextlib.ExitStack() as stack:
        model: Model
        if quantization == INT8:
            from engine.models.llama_int8 import Int8Llama  # here, for it needs numba

            checkpoint = Checkpoint(folder, stack, dtype=torch.float32, device=device)
            model = Int8Llama(config, checkpoint, max_position=max_position)
        else:
            checkpoint = Checkpoint(folder, stack, dtype=dtype, device=device)
            model = LlamaModel(config, checkpoint, max_position=max_position, rotate_values=rotate_values)
        if config.tied_embeddings:
            checkpoint.ignore("lm_head.weight")
        checkpoint.expect_all_taken()
    return model


class Checkpoint:
    """The tensors of a folder, each handed out once."""

    def __init__(self, folder: Path, stack: contextlib.ExitStack, *, dtype: torch.dtype, device: torch.device) -> None:
        self.dtype = dtype
        self.device = device
        self._folder = folder
        self._files: dict[str, Any] = {}
        try:
            for path in _weight_files(folder):
                file = stack.enter_context(safe_open(path, framework="pt"))
                self._files.update(dict.fromkeys(file.keys(), file))
        except (OSError, SafetensorError) as error:
            raise ModelLoadError(f"{folder}: weights cannot be read ({error})") from error

    def take(self, name: str, *shape: int, change: Change | None = None) -> torch.Tensor:
        """Return tensor `name`, changed in fp64 where a change is given, in the dtype and on the device of the model.

        Raises:
            ModelLoadError: it is not there, or of another shape.
        """
        if (file := self._files.pop(name, None)) is None:
            raise ModelLoadError(f"{self._folder}: weight {name!r} is missing")
        tensor: torch.Tensor = file.get_tensor(name)
        if tensor.shape != shape:
            raise ModelLoadError(f"{self._folder}: weight {name!r}: got {list(tensor.shape)}, wanted {list(shape)}")
        if change is not None:
            tensor = change(tensor.double())
        return tensor.to(self.device, self.dtype)

    def ignore(self, name: str) -> None:
        """Let it be that this tensor is there."""
        self._files.pop(name, None)

    def expect_all_taken(self) -> None:
        """Raise if the checkpoint holds a weight that the model has no place for."""
        left = [name for name in self._files if not name.endswith(_IGNORED_SUFFIXES)]
        if left:
            more = f" and {len(left) - 3} more" if len(left) > 3 else ""
            raise ModelLoadError(f"{self._folder}: the model has no place for weights {', '.join(left[:3])}{more}")


def choose_device(name: str) -> torch.device:
    """Return the device an option names.

    Raises:
        ConfigError: there is none of that kind.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(f"device: got {name!r}, wanted 'auto', 'cpu' or 'cuda'") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"device: got {name!r}, but this machine offers no CUDA device to torch")
    return device


def choose_dtype(name: str, device: torch.device) -> torch.dtype:
    """Return the dtype an option names; `auto`: bfloat16 on CUDA and on CPUs with instructions for it, else float32."""
    if name != "auto":
        return {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}[name]
    return torch.bfloat16 if device.type == "cuda" or _cpu_has_bfloat16() else torch.float32


def _cpu_has_bfloat16(cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    try:
        flags = cpuinfo.read_text(encoding="utf-8").split()
    except OSError:
        return False
    return "avx512_bf16" in flags or "amx_bf16" in flags


def _weight_files(folder: Path) -> list[Path]:
    """The shards that the index names, else the one safetensors file."""
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        try:
            names = set(json.loads(index.read_bytes())["weight_map"].values())
        except (ValueError, KeyError, AttributeError) as error:
            raise ModelLoadError(f"{index}: not a safetensors index") from error
        paths = [folder / str(name) for name in sorted(names)]
    else:
        paths = [folder / "model.safetensors"]
    for path in paths:
        if not path.is_file():
            raise ModelLoadError(f"{path} is missing")
    return paths
