"""One load in four caches: contiguous, paged, with a shared prefix, and in 8 bits. Loads no torch."""

from __future__ import annotations

from dataclasses import dataclass, replace

from engine.kv_layout import KVLayout
from engine.memory_plan import MemoryPlan, Workload

_INT8 = "int8/hadamard"


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to keep the same chats."""

    name: str
    full: MemoryPlan
    """All chats at full length, the worst case."""
    average: MemoryPlan
    """All chats half way from the shared prefix to full length; a contiguous buffer is as large from the start."""


def variants(plan: MemoryPlan) -> tuple[Variant, ...]:
    """Return the caches from the plainest to the smallest; the last has the plan's own int8 format, where it has one."""
    given, load = plan.layout, plan.workload
    plain = KVLayout(
        given.num_layers, given.num_kv_heads, given.head_dim, block_size=given.block_size, itemsize=given.itemsize
    )
    small = given if given.kv_cache_dtype != "auto" else replace(plain, kv_cache_dtype=_INT8)
    half_way = (load.shared_tokens + load.context_tokens + 1) // 2

    def account(layout: KVLayout, context_tokens: int, shared_tokens: int) -> MemoryPlan:
        return replace(plan, layout=layout, workload=Workload(load.concurrency, context_tokens, shared_tokens))

    def paged(name: str, layout: KVLayout, shared_tokens: int) -> Variant:
        return Variant(
            name,
            account(layout, load.context_tokens, shared_tokens),
            account(layout, half_way, shared_tokens),
        )

    bits = 8 * given.itemsize
    reserved = account(plain, load.context_tokens, 0)
    return (
        Variant(f"{bits}-bit contiguous", reserved, reserved),
        paged(f"{bits}-bit paged", plain, 0),
        paged("+ shared prefix", plain, load.shared_tokens),
        paged(f"+ {small.kv_cache_dtype}", small, load.shared_tokens),
    )
