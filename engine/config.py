"""What a worker is started with: one frozen value, made by the gateway, sent as JSON on the worker's standard input.

Loads no torch.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.kv_layout import check_format, check_skip_layers

QUANTIZATIONS = ("auto", "none", "int8")
DTYPES = ("auto", "float32", "bfloat16", "float16")
BLOCK_SIZES = (8, 16, 32, 64)


@dataclass(frozen=True, slots=True)
class CacheConfig:
    """The paged KV cache and the prefix cache over it."""

    block_size: int = 32
    """Tokens a block."""
    num_blocks: int | None = None
    """Blocks in the pool; None: sized from the memory that is free."""
    kv_cache_dtype: str = "auto"
    """`auto`: the model's dtype; or a format of `engine.kv_layout.KV_FORMATS`."""
    kv_skip_layers: str = "auto"
    """Layers that stay unquantized: `none`, a list such as `0,5` or `first:1,last:4`, or `auto`: those whose keys have
    outliers in a run at load, for these are what int8 hurts."""
    enable_prefix_caching: bool = True
    """False: nothing is matched, for comparisons."""
    max_shared_ratio: float = 0.5
    """Most of the pool that may be shared or pinned."""
    max_pinned_ratio: float = 0.25
    """Most of the pool that may be pinned."""
    growth_reserve: int = 256
    """Tokens of growth kept free for every running sequence."""

    def __post_init__(self) -> None:
        if self.block_size not in BLOCK_SIZES:
            raise ValueError(f"block_size: got {self.block_size}, wanted one of {BLOCK_SIZES}")
        if self.num_blocks is not None and self.num_blocks < 2:
            raise ValueError(f"num_blocks: got {self.num_blocks}, wanted at least 2")
        check_format(self.kv_cache_dtype)
        check_skip_layers(self.kv_skip_layers)


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """How much runs at once."""

    max_num_seqs: int = 32
    """Requests that run at the same time."""
    max_num_batched_tokens: int = 2048
    """Tokens in one step, decode and prefill together."""
    prefill_chunk: int = 512
    """Most prompt tokens of one request in one step; 0: no limit but the step's."""

    def __post_init__(self) -> None:
        for name in ("max_num_seqs", "max_num_batched_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: got {getattr(self, name)}, wanted at least 1")
        if self.prefill_chunk < 0:
            raise ValueError(f"prefill_chunk: got {self.prefill_chunk}, wanted 0 (no limit) or more")
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ValueError(
                f"max_num_batched_tokens: got {self.max_num_batched_tokens}, wanted at least "
                f"max_num_seqs ({self.max_num_seqs}), so that every running request can decode in one step"
            )


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Everything one worker needs."""

    model_path: str
    """Folder with config.json, safetensors and tokenizer files."""
    dtype: str = "auto"
    """Weights and activations; `auto`: bfloat16 where the device is fast at it, else float32."""
    quantization: str = "none"
    """Of the weights and of what they are multiplied with: `none`, `int8`, or `auto`: int8 on a CPU that is fast at it,
    unless a dtype is asked for."""
    device: str = "auto"
    """`auto`: cuda where there is one, else cpu."""
    max_model_len: int | None = None
    """Tokens of prompt and answer together; None: the model's limit or the pool, whichever is smaller."""
    cache: CacheConfig = field(default_factory=CacheConfig)
    """KV and prefix cache."""
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    """Batching."""

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise ValueError(f"dtype: got {self.dtype!r}, wanted one of {DTYPES}")
        if self.quantization not in QUANTIZATIONS:
            raise ValueError(f"quantization: got {self.quantization!r}, wanted one of {QUANTIZATIONS}")
        if self.max_model_len is not None and self.max_model_len < 1:
            raise ValueError(f"max_model_len: got {self.max_model_len}, wanted at least 1")
