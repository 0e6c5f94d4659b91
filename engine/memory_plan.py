"""The memory account of a model that serves: what is there, what takes it, and how many chats fit into the rest.

Arithmetic over shapes. Loads no torch and touches no device.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from engine.batch import MAX_SCORED_TOKENS
from engine.kv_layout import KVLayout
from engine.model_config import ModelConfig, ModelShape

GIB = 2**30
CPU_OVERHEAD_BYTES = 400 * 2**20
"""Of a worker on a CPU without weights: 290 MiB resident with torch and numba loaded (measured), and room for what is
compiled."""
RESERVE_RATIO = 0.05
"""Of the memory, left free: allocators fragment, and other programs grow."""


CHAT_TOKENS = 2048
"""Length of a chat where nobody said another."""
MAX_NUM_SEQS = 256
"""Most requests at the same time where nobody said another: more rows make no step cheaper."""


@dataclass(frozen=True, slots=True)
class Workload:
    """What is to be served at the same time."""

    concurrency: int
    """Chats."""
    context_tokens: int
    """Of each, prompt and answer."""
    shared_tokens: int = 0
    """Of those, a prefix that all have in common and that is held once."""

    def __post_init__(self) -> None:
        for name, least in (("concurrency", 1), ("context_tokens", 1), ("shared_tokens", 0)):
            if getattr(self, name) < least:
                raise ValueError(f"{name.removesuffix('_tokens')}: got {getattr(self, name)}, wanted at least {least}")
        if self.shared_tokens > self.context_tokens:
            raise ValueError(
                f"--shared-tokens: got {self.shared_tokens}, wanted at most the context, {self.context_tokens}"
            )


@dataclass(frozen=True, slots=True)
class FixedBytes:
    """What is taken whatever the chats do; all 0 where only the shape of a cache is known."""

    weights: int = 0
    activations: int = 0
    overhead: int = 0

    @classmethod
    def of_model(
        cls, model: ModelConfig, *, itemsize: int, max_num_batched_tokens: int, concurrency: int, int8: bool = False
    ) -> FixedBytes:
        """Account for a model.

        Args:
            model: its shape.
            itemsize: bytes of a weight and of an activation.
            max_num_batched_tokens: rows of the largest step.
            concurrency: rows that sample in it.
            int8: weights are quantized, whatever the item size.
        """
        return cls(
            weights=int8_weight_bytes(model) if int8 else weight_bytes(model, itemsize=itemsize),
            activations=largest_step_bytes(
                model, itemsize=itemsize, int8=int8, num_tokens=max_num_batched_tokens, num_sampled=concurrency
            ),
            overhead=CPU_OVERHEAD_BYTES,
        )

    @property
    def total(self) -> int:
        """All of it."""
        return self.weights + self.activations + self.overhead


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """The account."""

    layout: KVLayout
    workload: Workload
    fixed: FixedBytes
    memory_bytes: int | None
    """None: not said, so that nothing can be said of what fits."""
    step_tokens: int = 0
    """Of the largest step; per_channel has open the blocks that it begins."""

    @property
    def kv_bytes_total(self) -> int:
        """Of all chats at full length."""
        private = self.workload.context_tokens - self._shared_blocks * self.layout.block_size
        chats = self.workload.concurrency * (_ceil(private, self.layout.block_size) * self.layout.block_bytes)
        return self._shared_bytes + chats + self._open_bytes(self.workload.concurrency)

    @property
    def reserve_bytes(self) -> int:
        """Left free. Nothing where only the shape of a cache is known: then the memory is the cache's own."""
        return int(RESERVE_RATIO * (self.memory_bytes or 0)) if self.fixed.total else 0

    @property
    def kv_budget_bytes(self) -> int | None:
        """Memory for the cache, never negative; None: no memory was said."""
        if self.memory_bytes is None:
            return None
        return max(0, self.memory_bytes - self.fixed.total - self.reserve_bytes)

    @property
    def fits(self) -> bool | None:
        """Tell whether all chats fit at full length."""
        return None if self.kv_budget_bytes is None else self.kv_bytes_total <= self.kv_budget_bytes

    @property
    def needed_bytes(self) -> int:
        """Memory with which all chats fit at full length."""
        needed = self.fixed.total + self.kv_bytes_total
        return needed if not self.fixed.total else math.ceil(needed / (1 - RESERVE_RATIO))

    @property
    def max_concurrency(self) -> int | None:
        """Chats that fit when all are at full length."""
        return self._concurrency(self.workload.context_tokens)

    @property
    def average_concurrency(self) -> int | None:
        """Chats that fit when they are half way from the shared prefix to full length on average."""
        return self._concurrency((self.workload.shared_tokens + self.workload.context_tokens + 1) // 2)

    @property
    def max_context_tokens(self) -> int | None:
        """Length that this many chats can all have."""
        if self.kv_budget_bytes is None:
            return None
        for_all = self.kv_budget_bytes - self._shared_bytes - self._open_bytes(self.workload.concurrency)
        one_chat = for_all // self.workload.concurrency
        if one_chat <= 0:
            return 0
        return (self._shared_blocks + one_chat // self.layout.block_bytes) * self.layout.block_size

    @property
    def _shared_blocks(self) -> int:
        """Only full blocks are shared."""
        return self.workload.shared_tokens // self.layout.block_size

    @property
    def _shared_bytes(self) -> int:
        return self._shared_blocks * self.layout.block_bytes

    def _open_bytes(self, num_chats: int) -> int:
        """Beside the pool."""
        num_open = self.layout.num_open_blocks(num_requests=num_chats, step_tokens=self.step_tokens)
        return num_open * self.layout.open_block_bytes

    def _concurrency(self, context_tokens: int) -> int | None:
        if self.kv_budget_bytes is None:
            return None
        private = context_tokens - self._shared_blocks * self.layout.block_size
        one_chat = max(1, _ceil(private, self.layout.block_size)) * self.layout.block_bytes
        one_chat += self._open_bytes(1) - self._open_bytes(0)
        return max(0, (self.kv_budget_bytes - self._shared_bytes - self._open_bytes(0)) // one_chat)


def default_num_seqs(layout: KVLayout, *, num_blocks: int, max_model_len: int, max_num_batched_tokens: int) -> int:
    """Return how many requests run at the same time by default: the chats that fit into the pool at full length.

    Args:
        layout: of the pool.
        num_blocks: of the pool.
        max_model_len: tokens of the longest request; chats are that long, or CHAT_TOKENS if it is longer.
        max_num_batched_tokens: rows of the largest step, of which each request needs one.
    """
    chat = Workload(1, min(CHAT_TOKENS, max_model_len))
    fitting = MemoryPlan(layout, chat, FixedBytes(), num_blocks * layout.block_bytes).max_concurrency
    return max(1, min(fitting or 1, MAX_NUM_SEQS, max_num_batched_tokens))


def weight_bytes(model: ModelConfig, *, itemsize: int, packs_head: bool = True) -> int:
    """Return the bytes of the weights.

    Args:
        model: its shape.
        itemsize: bytes of a weight.
        packs_head: a head that is tied to the embedding is there twice, as on a CPU: as a table, and packed for the
            product. A GPU keeps it once.
    """
    copied = model.vocab_size * model.hidden_size if packs_head and model.tied_embeddings else 0
    return (num_parameters(model) + copied) * itemsize


def num_parameters(model: ModelConfig) -> int:
    """Return the weights of a model of the Llama family, biases and norms included."""
    hidden, inner = model.hidden_size, model.intermediate_size
    q_size, kv_size = model.num_heads * model.head_dim, model.num_kv_heads * model.head_dim
    attention = hidden * (q_size + 2 * kv_size) + q_size * hidden
    attention += (q_size + 2 * kv_size) * model.qkv_bias + hidden * model.o_bias + 2 * model.head_dim * model.qk_norm
    mlp = 3 * hidden * inner + (2 * inner + hidden) * model.mlp_bias
    embeddings = model.vocab_size * hidden * (1 if model.tied_embeddings else 2)
    return model.num_layers * (attention + mlp + 2 * hidden) + embeddings + hidden


def activation_bytes(model: ModelConfig, *, itemsize: int, num_tokens: int, num_sampled: int) -> int:
    """Return what lives at the same time at the widest point of a step: the MLP, or the logits after it.

    Args:
        model: its shape.
        itemsize: bytes of an activation.
        num_tokens: rows of the step.
        num_sampled: rows whose logits are computed, in fp32 and once more as they are sampled.
    """
    residual = num_tokens * 2 * model.hidden_size
    qkv = num_tokens * (2 * model.num_heads + 2 * model.num_kv_heads) * model.head_dim
    mlp = num_tokens * 3 * model.intermediate_size
    logits = 2 * 4 * num_sampled * model.vocab_size
    return max((residual + max(qkv, mlp)) * itemsize, logits)


def largest_step_bytes(model: ModelShape, *, itemsize: int, int8: bool, num_tokens: int, num_sampled: int) -> int:
    """Return the activations of the largest step, in which a prompt is scored, too: see `activation_bytes`.

    Of a model in the modules of transformers only the logits are known.
    """
    num_sampled += MAX_SCORED_TOKENS
    if not isinstance(model, ModelConfig):
        return 2 * 4 * num_sampled * model.vocab_size
    if int8:
        return int8_activation_bytes(model, num_tokens=num_tokens, num_sampled=num_sampled)
    return activation_bytes(model, itemsize=itemsize, num_tokens=num_tokens, num_sampled=num_sampled)


def int8_weight_bytes(model: ModelConfig) -> int:
    """Return the bytes of int8 weights: one each, and for each output channel a scale, an offset and a bias."""
    q_size, kv_size = model.num_heads * model.head_dim, model.num_kv_heads * model.head_dim
    columns = q_size + 2 * kv_size + 2 * model.hidden_size + 2 * model.intermediate_size
    heads = model.vocab_size * (1 if model.tied_embeddings else 2)
    return num_parameters(model) + 12 * (model.num_layers * columns + heads)


def int8_activation_bytes(model: ModelConfig, *, num_tokens: int, num_sampled: int) -> int:
    """Return what lives at the same time with int8 weights: the residual stream, heads and sums in 4 bytes, and codes.

    Args:
        model: its shape.
        num_tokens: rows of the step.
        num_sampled: rows whose logits are computed, with their sums and once more as they are sampled.
    """
    q_size, kv_size = model.num_heads * model.head_dim, model.num_kv_heads * model.head_dim
    heads = q_size + 2 * kv_size
    wide = model.hidden_size + heads + max(heads, 2 * model.intermediate_size) + 2 * q_size
    codes = model.hidden_size + q_size + model.intermediate_size
    return num_tokens * (4 * wide + codes) + 3 * 4 * num_sampled * model.vocab_size


def _ceil(num_tokens: int, block_size: int) -> int:
    return -(-max(num_tokens, 0) // block_size)
