"""The prefix cache: which KV block holds which tokens, who refers to it, and what may be reused, copied or evicted.

Plain Python, xxhash and numpy. Knows no tensor, clock, thread or socket.
"""

from prefixcache.block_table import Allocation, BlockTable, Fork, Match
from prefixcache.hashing import hash_blocks, namespace
from prefixcache.interface import (
    BlockHash,
    BlockState,
    BlockStateError,
    BlockView,
    CacheSnapshot,
    CopyOp,
    Explanation,
    Namespace,
    Pin,
    PinRefusal,
    PinResult,
    PrefixCacheConfig,
    Prompt,
    Reason,
    Scope,
    TokenArray,
)
from prefixcache.manager import PrefixCache
from prefixcache.retention import Priority

__all__ = [
    "Allocation",
    "BlockHash",
    "BlockState",
    "BlockStateError",
    "BlockTable",
    "BlockView",
    "CacheSnapshot",
    "CopyOp",
    "Explanation",
    "Fork",
    "Match",
    "Namespace",
    "Pin",
    "PinRefusal",
    "PinResult",
    "PrefixCache",
    "PrefixCacheConfig",
    "Priority",
    "Prompt",
    "Reason",
    "Scope",
    "TokenArray",
    "hash_blocks",
    "namespace",
]
