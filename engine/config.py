"""What a worker is started with: one frozen value, made by the gateway, sent as JSON on the worker's standard input.

Loads no torch.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.kv_layout import DEFAULT_KV_FORMAT, check_format, check_skip_layers

MODEL_IMPLS = ("auto", "lean", "transformers")
QUANTIZATIONS = ("auto", "none", "int8")
DTYPES = ("auto", "float32", "bfloat16", "float16")
BLOCK_SIZES = (8, 16, 32, 64)


@dataclass(frozen=True, slots=True)
class CacheConfig:
    """The paged KV cache and the prefix cache over it."""

    block_size: int = 32
    """Tokens a block."""
    num_blocks: int | None = None
    """Blocks in the pool; None: sized from memory."""
    kv_cache_memory: int | None = None
    """Bytes of the pool; None: sized from the memory that is free."""
    gpu_memory_utilization: float = 0.85
    """On a GPU: most of its memory that weights, activations, the pool and other programs may take together."""
    kv_cache_dtype: str = DEFAULT_KV_FORMAT
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
        if self.kv_cache_memory is not None and self.kv_cache_memory < 1:
            raise ValueError(f"kv_cache_memory: got {self.kv_cache_memory}, wanted at least 1 byte")
        if self.num_blocks is not None and self.kv_cache_memory is not None:
            raise ValueError("num_blocks and kv_cache_memory: both size the pool, wanted one of them")
        if not 0 < self.gpu_memory_utilization <= 1:
            raise ValueError(
                f"gpu_memory_utilization: got {self.gpu_memory_utilization}, wanted more than 0, at most 1"
            )
        check_format(self.kv_cache_dtype)
        check_skip_layers(self.kv_skip_layers)


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """How much runs at once, and in what order."""

    max_num_seqs: int | None = None
    """Requests that run at the same time; None: the chats that `plan` says fit into the pool."""
    max_num_batched_tokens: int = 2048
    """Tokens in one step, decode and prefill together."""
    prefill_chunk: int = 512
    """Most prompt tokens of one request in one step; 0: no limit but the step's."""
    long_prefill_token_threshold: int = 512
    """Prompts with more tokens to compute than this go into the long lane; 0: one lane."""
    max_step_seconds: float | None = None
    """Chunks are cut so that a step takes no longer, as far as past steps tell; None: no longer than makes it efficient on
    this machine; 0: no limit but tokens."""
    deterministic: bool = False
    """True: the bits of an answer depend on its request alone. Chunks end at multiples of prefill_chunk, whatever else runs."""

    def __post_init__(self) -> None:
        for name in ("max_num_seqs", "max_num_batched_tokens"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name}: got {value}, wanted at least 1")
        for name in ("prefill_chunk", "long_prefill_token_threshold", "max_step_seconds"):
            if (value := getattr(self, name)) is not None and not value >= 0:
                raise ValueError(f"{name}: got {value}, wanted 0 (no limit) or more")
        largest = (self.max_num_batched_tokens - (self.max_num_seqs or 0)) // 2
        if self.deterministic and not 1 <= self.prefill_chunk <= largest:
            raise ValueError(
                f"prefill_chunk: got {self.prefill_chunk}, wanted 1 to {largest} where deterministic: a whole chunk of each "
                "lane must fit into a step beside the decoding requests"
            )
        if self.max_num_seqs is not None and self.max_num_batched_tokens < self.max_num_seqs:
            raise ValueError(
                f"max_num_batched_tokens: got {self.max_num_batched_tokens}, wanted at least "
                f"max_num_seqs ({self.max_num_seqs}), so that every running request can decode in one step"
            )


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Everything one worker needs."""

    model_path: str
    """Folder with config.json, safetensors and tokenizer files."""
    model_impl: str = "auto"
    """`lean`: our own forward; `transformers`: its modules over our cache; `auto`: lean for the models that it knows."""
    dtype: str = "auto"
    """Weights and activations; `auto`: bfloat16 where the device is fast at it, else float32."""
    quantization: str = "auto"
    """Of the weights and of what they are multiplied with: `none`, `int8`, or `auto`: int8 on a CPU that is fast at it,
    unless a dtype is asked for."""
    device: str = "auto"
    """`auto`: cuda where there is one, else cpu."""
    enforce_eager: bool = False
    """True: no CUDA graphs; decode steps are launched kernel by kernel."""
    max_model_len: int | None = None
    """Tokens of prompt and answer together; None: the model's limit or the pool, whichever is smaller."""
    cache: CacheConfig = field(default_factory=CacheConfig)
    """KV and prefix cache."""
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    """Batching."""

    def __post_init__(self) -> None:
        if self.model_impl not in MODEL_IMPLS:
            raise ValueError(f"model_impl: got {self.model_impl!r}, wanted one of {MODEL_IMPLS}")
        if self.dtype not in DTYPES:
            raise ValueError(f"dtype: got {self.dtype!r}, wanted one of {DTYPES}")
        if self.quantization not in QUANTIZATIONS:
            raise ValueError(f"quantization: got {self.quantization!r}, wanted one of {QUANTIZATIONS}")
        if self.max_model_len is not None and self.max_model_len < 1:
            raise ValueError(f"max_model_len: got {self.max_model_len}, wanted at least 1")
