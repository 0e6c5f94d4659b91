"""What a token of the KV cache costs, by format and layer, and the grammar of `--kv-skip-layers`.

Arithmetic only: the worker allocates by it, `plan` predicts by it, and a test holds both to each other. Loads no torch.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

KV_FORMATS = (
    "auto",
    "int8/hadamard",
    "int8/per_token",
    "int8/per_group_32",
    "int8/per_group_64",
    "int8/per_group_128",
    "int8/per_channel",
)
DEFAULT_KV_FORMAT = "int8/hadamard"
"""`kernels.quant.SERVED_FORMATS`, for those who must not load torch; a test says that they are equal."""
PER_CHANNEL = "int8/per_channel"
"""The format whose blocks are quantized as a whole, when they are full."""
SKIP_AUTO = "auto"
SKIP_NONE = "none"

_SCALE_BYTES = 2
_SKIP_TERM = re.compile(r"(?:(first|last):)?([0-9]+)")


@dataclass(frozen=True, slots=True)
class KVLayout:
    """The shape of a paged cache."""

    num_layers: int
    num_kv_heads: int
    head_dim: int
    kv_cache_dtype: str = "auto"
    """One of `KV_FORMATS`."""
    skipped_layers: frozenset[int] = frozenset()
    """Layers that stay unquantized."""
    block_size: int = 32
    itemsize: int = 2
    """Bytes of a value that is not quantized."""

    def __post_init__(self) -> None:
        check_format(self.kv_cache_dtype)
        if self.kv_cache_dtype == "int8/hadamard" and self.head_dim % 16:
            raise ValueError(f"kv_cache_dtype: int8/hadamard needs heads of a multiple of 16, not {self.head_dim}")
        if self._group_size < self.head_dim and self.head_dim % self._group_size:
            raise ValueError(f"kv_cache_dtype: {self.kv_cache_dtype} does not divide a head of {self.head_dim}")

    @property
    def num_quantized_layers(self) -> int:
        """Layers of the format; the others are unquantized."""
        return 0 if self.kv_cache_dtype == "auto" else self.num_layers - len(self.skipped_layers)

    @property
    def block_bytes(self) -> int:
        """Bytes of one block in all layers: codes and scales of keys and values."""
        plain = 2 * self.block_size * self.head_dim * self.itemsize
        num_plain = self.num_layers - self.num_quantized_layers
        return self.num_kv_heads * (num_plain * plain + self.num_quantized_layers * self._quantized_head_bytes)

    @property
    def bytes_per_token(self) -> float:
        """Bytes of one token in all layers; whole, unless scales of a block and channel do not divide evenly."""
        return self.block_bytes / self.block_size

    @property
    def open_block_bytes(self) -> int:
        """per_channel: bytes of one block that is still open, beside its place in the pool; else 0."""
        if self.kv_cache_dtype != PER_CHANNEL:
            return 0
        return self.num_quantized_layers * self.num_kv_heads * self.block_size * self.head_dim * self.itemsize

    def num_open_blocks(self, *, num_requests: int, step_tokens: int) -> int:
        """Return the blocks that can be open at the same time; 0 but for per_channel.

        Each running request has one that it has not filled. A step of n tokens of one request begins at most
        1 + (n - 2) / block_size more, and they are open until the step ends, for its rows read their own block open.

        Args:
            num_requests: that run at the same time.
            step_tokens: of the largest step, all requests together.
        """
        return 2 * num_requests + step_tokens // self.block_size if self.open_block_bytes else 0

    @property
    def _group_size(self) -> int:
        group = self.kv_cache_dtype.removeprefix("int8/per_group_")
        return int(group) if group.isdecimal() else self.head_dim

    @property
    def _quantized_head_bytes(self) -> int:
        """Bytes of one block and KV head."""
        codes = 2 * self.block_size * self.head_dim
        num_groups = max(1, self.head_dim // self._group_size)
        key_scales = self.head_dim if self.kv_cache_dtype == PER_CHANNEL else self.block_size * num_groups
        return codes + _SCALE_BYTES * (key_scales + self.block_size * num_groups)

    def formula(self) -> str:
        """Say how the bytes of a token come about, for people."""
        heads = f"{self.num_kv_heads} KV heads"
        parts = []
        if num_plain := self.num_layers - self.num_quantized_layers:
            parts.append(f"{num_plain} layers x {heads} x 2 (K, V) x {self.head_dim} channels x {self.itemsize} bytes")
        if self.num_quantized_layers:
            one_head = self._quantized_head_bytes / self.block_size
            scales = f"({one_head - 2 * self.head_dim:g} bytes of scales + 2 (K, V) x {self.head_dim} codes)"
            parts.append(f"{self.num_quantized_layers} layers x {heads} x {scales}")
        return f"{' + '.join(parts)} = {self.bytes_per_token:,g} bytes a token"


def check_format(name: str) -> None:
    """Raise ValueError unless this is a format of the grammar."""
    if name not in KV_FORMATS:
        raise ValueError(f"kv_cache_dtype: got {name!r}, wanted one of {', '.join(KV_FORMATS)}")


def check_skip_layers(text: str) -> None:
    """Raise ValueError unless this is `none`, `auto` or a list."""
    if text not in (SKIP_AUTO, SKIP_NONE):
        parse_skip_layers(text, num_layers=None)


def parse_skip_layers(text: str, *, num_layers: int | None) -> frozenset[int]:
    """Read a list such as `0,5` or `first:1,last:4`, or `none`.

    Args:
        text: the list; layers count from 0.
        num_layers: of the model; None: only the form is checked.

    Raises:
        ValueError: another form, or a layer that the model does not have.
    """
    if text == SKIP_NONE:
        return frozenset()
    skipped: set[int] = set()
    for term in text.split(","):
        if (match := _SKIP_TERM.fullmatch(term.strip())) is None:
            raise ValueError(
                f"kv_skip_layers: got {text!r}, wanted none, auto, or a list such as 0,5 or first:1,last:4"
            )
        end, number = match[1], int(match[2])
        if num_layers is None:
            continue
        if number > num_layers - (end is None):
            raise ValueError(f"kv_skip_layers: got {term.strip()!r}, but the model has {num_layers} layers")
        first, last = {"first": (0, number), "last": (num_layers - number, num_layers)}.get(end, (number, number + 1))
        skipped.update(range(first, last))
    return frozenset(skipped)


def format_layers(layers: frozenset[int]) -> str:
    """Return the list that `parse_skip_layers` reads."""
    return ",".join(map(str, sorted(layers))) or SKIP_NONE
