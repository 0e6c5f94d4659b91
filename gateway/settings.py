"""Every option of `prefixgate serve`: one model for flags and environment, and its only reader.

A field's docstring is its `--help`. Values that go on to the engine are checked again there; here the error names the
flag.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, SecretStr, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

BLOCK_SIZES = (8, 16, 32, 64)
KVCacheDtype = Literal[
    "auto",
    "int8/hadamard",
    "int8/per_token",
    "int8/per_group_32",
    "int8/per_group_64",
    "int8/per_group_128",
    "int8/per_channel",
]
KV_SKIP_LAYERS = r"^(none|auto|((first|last):)?[0-9]+(,((first|last):)?[0-9]+)*)$"
MIN_KEY_CHARS = 8
ENVIRONMENT_PREFIX = "PREFIXGATE_"
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([kmgt]i?b)")
_UNITS = {
    f"{prefix}{unit}": base**power
    for unit, base in (("ib", 1024), ("b", 1000))
    for power, prefix in enumerate("kmgt", 1)
}
_ASYNC_URL = re.compile(r"[a-z0-9_]+\+[a-z0-9_]+://")


def _none_is_zero(value: object) -> object:
    return 0 if isinstance(value, str) and value.lower() == "none" else value


def _bytes(value: object) -> object:
    """Read 2GiB, 2GB or 500MiB. A bare number is refused: nobody knows whether it means bytes or GiB."""
    if value is None or isinstance(value, int):
        return value
    if not isinstance(value, str) or (match := _SIZE.fullmatch(value.strip().lower())) is None:
        raise ValueError("a size with its unit, such as 2GiB or 500MB")
    return int(float(match[1]) * _UNITS[match[2]])


class Settings(BaseSettings):
    """Options of one gateway and its engine."""

    model_config = SettingsConfigDict(
        env_prefix=ENVIRONMENT_PREFIX,
        env_ignore_empty=True,
        extra="forbid",
        frozen=True,
        use_attribute_docstrings=True,
        validate_default=True,
    )

    model: str = "smollm2-135m-instruct"
    """What to serve: an alias, a folder, a GGUF file or a hub id."""
    host: str = "127.0.0.1"
    """Address to listen on. Without API keys only a loopback address answers."""
    port: int = Field(8000, ge=0, le=65535)
    """Port to listen on; 0 takes a free one."""
    db: str | None = None
    """Async SQLAlchemy URL, such as sqlite+aiosqlite:///prefixgate.db; nothing is stored yet."""
    model_dir: Path | None = None
    """Folder for pulled models; by default in the user's cache folder."""
    chat_template: Path | None = None
    """File with a jinja chat template to use in place of the model's."""
    model_impl: Literal["auto", "lean", "transformers"] = "auto"
    """What computes the model: our own lean forward, the modules of transformers, or lean for the models it knows."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Type of weights and activations; auto is bfloat16 where the device is fast at it, else float32."""
    quantization: Literal["auto", "none", "int8"] = "auto"
    """Format of the weights; int8 takes half of 16 bits. Auto is int8 on a CPU that is fast at it, unless a dtype is
    asked for."""
    enforce_eager: bool = False
    """On a GPU, launch decode steps kernel by kernel and not as CUDA graphs: slower, starts sooner, takes less memory."""
    block_size: int = 32
    """Tokens in a block of the KV cache: 8, 16, 32 or 64."""
    num_blocks: int | None = Field(None, ge=2)
    """Blocks in the KV cache; by default what fits into memory."""
    kv_cache_memory: Annotated[int | None, BeforeValidator(_bytes)] = None
    """Memory of the KV cache, such as 2GiB; by default sized from the memory that is free."""
    gpu_memory_utilization: float = Field(0.85, gt=0, le=1)
    """On a GPU: most of its memory that may be in use, by this program and others."""
    max_model_len: int | None = Field(None, ge=1)
    """Most tokens of prompt and answer together; by default what model and cache allow."""
    max_num_seqs: int | None = Field(None, ge=1)
    """Most requests that run at the same time; by default the chats of 2,048 tokens that fit into the KV cache."""
    max_num_batched_tokens: int = Field(2048, ge=1)
    """Most tokens in one step of the engine."""
    prefill_chunk: Annotated[int, BeforeValidator(_none_is_zero)] = Field(512, ge=0)
    """Most prompt tokens of one request in one step; none or 0 leaves only the step's own limit."""
    long_prefill_token_threshold: int = Field(512, ge=0)
    """Prompts with more tokens to compute than this do not hold up shorter ones; 0 treats all alike."""
    max_step_seconds: float = Field(0.25, ge=0, allow_inf_nan=False)
    """Longest step, in seconds, that prompts are cut for: what a running answer waits for its next token at most, as far
    as measured steps tell; 0 cuts by tokens only."""
    kv_cache_dtype: KVCacheDtype = "auto"
    """Format of the KV cache; auto is the model's type, int8 takes about half of 16 bits."""
    kv_skip_layers: str = Field("auto", pattern=KV_SKIP_LAYERS)
    """Layers that an int8 KV cache leaves unquantized: none, a list such as 0,5 or first:1,last:4, or auto, which looks
    for key outliers at start."""
    max_shared_ratio: float = Field(0.5, ge=0, le=1)
    """Most of the KV cache that requests may have in common use."""
    max_pinned_ratio: float = Field(0.25, ge=0, le=1)
    """Most of the KV cache that may be pinned; at most the shared ratio."""
    growth_reserve: int = Field(256, ge=0)
    """Tokens of growth kept free for every running request."""
    admin_key: SecretStr | None = None
    """Key of the admin API, which is off without one. Read from the environment only: flags show in process lists."""
    heartbeat_timeout: float = Field(60.0, gt=0)
    """Seconds without any word from the engine before it is restarted."""
    start_timeout: float = Field(600.0, gt=0)
    """Seconds the engine may take to load the model."""

    @field_validator("block_size")
    @classmethod
    def _known_block_size(cls, value: int) -> int:
        if value not in BLOCK_SIZES:
            raise ValueError("8, 16, 32 or 64")
        return value

    @field_validator("admin_key")
    @classmethod
    def _usable_key(cls, value: SecretStr | None) -> SecretStr | None:
        if value is None:
            return None
        key = value.get_secret_value()
        # Others do not survive a header: nobody could ever send them.
        if len(key) < MIN_KEY_CHARS or not key.isascii() or not key.isprintable() or key != key.strip():
            raise ValueError(f"at least {MIN_KEY_CHARS} characters, printable ASCII, no space at the ends")
        return value

    @field_validator("db")
    @classmethod
    def _async_url(cls, value: str | None) -> str | None:
        if value is not None and not _ASYNC_URL.match(value):
            raise ValueError("an async SQLAlchemy URL, such as sqlite+aiosqlite:///prefixgate.db")
        return value

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.max_pinned_ratio > self.max_shared_ratio:
            raise ValueError(
                f"--max-pinned-ratio: got {self.max_pinned_ratio}, wanted at most --max-shared-ratio "
                f"({self.max_shared_ratio})"
            )
        if self.num_blocks is not None and self.kv_cache_memory is not None:
            raise ValueError("--num-blocks and --kv-cache-memory: both size the KV cache, wanted one of them")
        if self.max_num_seqs is not None and self.max_num_batched_tokens < self.max_num_seqs:
            raise ValueError(
                f"--max-num-batched-tokens: got {self.max_num_batched_tokens}, wanted at least --max-num-seqs "
                f"({self.max_num_seqs}), so that every running request gets its token in each step"
            )
        return self


def unknown_variables() -> list[str]:
    """Name the variables of the environment that look like options and are none."""
    known = {ENVIRONMENT_PREFIX + name.upper() for name in Settings.model_fields}
    return sorted(
        name for name in os.environ if name.upper().startswith(ENVIRONMENT_PREFIX) and name.upper() not in known
    )
