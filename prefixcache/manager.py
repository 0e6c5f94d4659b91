"""The prefix cache as the scheduler sees it: match, admit, grow, commit, fork, free.

Single-threaded, no clock and no I/O. Decides and returns `CopyOp`s; the model runner moves the bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from prefixcache.admission import blocks_for, reserved_blocks, table_reserve
from prefixcache.block_index import NO_BLOCK, BlockIndex
from prefixcache.block_pool import BlockPool
from prefixcache.block_table import Allocation, BlockTable, Fork, Match
from prefixcache.ghosts import GhostList
from prefixcache.hashing import Hasher, xxh3_128
from prefixcache.integrity import check_integrity
from prefixcache.interface import (
    BlockStateError,
    CacheSnapshot,
    CopyOp,
    Explanation,
    Pin,
    PinResult,
    PrefixCacheConfig,
    Prompt,
)
from prefixcache.overlap import common_tokens
from prefixcache.policy import POLICIES
from prefixcache.reasons import Explainer
from prefixcache.retention import Priority, Retention
from prefixcache.table_index import TableIndex
from prefixcache.token_blocks import TokenBlocks

MAX_CANDIDATES = 32
"""Children compared for a partial match, newest first: bounds the price of a miss behind a popular prefix."""


class PrefixCache:
    """Owns every block of one engine's KV pool."""

    def __init__(self, config: PrefixCacheConfig, *, hasher: Hasher = xxh3_128) -> None:
        self.config = config
        self._hasher = hasher
        self._pool = BlockPool(config.num_blocks, POLICIES[config.policy])
        self._index = BlockIndex(config.num_blocks)
        self._ghosts = GhostList(config.ghost_factor * config.num_blocks)
        self._table_index = TableIndex(self._pool, self._index)
        self._retention = Retention(self._pool, self._index, _share(config.max_pinned_ratio, config.num_blocks))
        self._explainer = Explainer(self._index, self._ghosts, enabled=config.enabled)
        self._tables: dict[BlockTable, None] = {}
        self._matches: dict[Match, None] = {}
        self._max_shared_blocks = _share(config.max_shared_ratio, config.num_blocks)
        self._counters = {"evicted_blocks": 0, "copies": 0, "copied_tokens": 0, "share_cap_copies": 0}

    def max_request_tokens(self) -> int:
        """A request whose prompt + max_tokens is larger cannot be admitted; pins lower it while they last."""
        return (self.config.num_blocks - len(self._pool.pins)) * self.config.block_size

    def match(self, prompt: Prompt) -> Match:
        """Find the longest READY prefix and keep it from eviction until the match is admitted or released.

        At least the last token of a prompt is always left to compute, for its logits are needed. A match that is
        released makes what it found recent: somebody waits for it.
        """
        match = self._find(prompt)
        self._pool.lock(match.chain)
        if match.partial_source is not None:
            self._pool.lock((match.partial_source,))
        self._matches[match] = None
        return match

    def _find(self, prompt: Prompt) -> Match:
        tokens = TokenBlocks.of_prompt(prompt, self.config, self._hasher)
        match = Match(self, tokens, is_stale=bool(prompt.block_hashes) and prompt.hash_epoch != self.config.hash_epoch)
        if self.config.enabled:
            chain = self._index.longest_chain(tokens, (tokens.num_tokens - 1) // self.config.block_size)
            match.chain = self._ready(chain)
            match.num_pending_blocks = len(chain) - len(match.chain)
            if not match.num_pending_blocks:
                self._find_partial(match)
        return match

    def _ready(self, chain: list[int]) -> list[int]:
        num_ready = bytes(map(self._pool.ready.__getitem__, chain)).find(0)
        return chain if num_ready < 0 else chain[:num_ready]

    def _find_partial(self, match: Match) -> None:
        """Look behind the full blocks for the block that begins most like the prompt's next one."""
        position = len(match.chain)
        wanted = match.tokens.tokens_from(position, match.tokens.num_tokens - 1)
        parent = match.chain[-1] if match.chain else NO_BLOCK
        candidates = self._index.children(parent, match.tokens.namespace_at(position))
        for child, _ in zip(candidates, range(MAX_CANDIDATES), strict=False):
            chunk = self._index.chunks[child]
            if chunk[:4] == wanted[:4] and self._pool.ready[child]:
                overlap = common_tokens(chunk, wanted)
                if overlap > match.overlap:
                    match.overlap = overlap
                    match.partial_source = child
        if match.overlap < self.config.min_partial_tokens:
            match.partial_source = None

    def release_match(self, match: Match) -> None:
        """Unlock what a match holds; `Match.release` is the way to call this."""
        match.is_open = False
        del self._matches[match]
        if match.partial_source is not None:
            self._pool.unlock((match.partial_source,))
        self._pool.unlock(match.chain[::-1])

    def admit(self, match: Match, *, max_new_tokens: int, num_sequences: int = 1) -> Allocation | None:
        """Give a matched prompt all its blocks, or None when it does not fit beside the running requests.

        On None the match stays owned. Blocks that this request is the first to compute are indexed as PENDING.
        """
        if match not in self._matches:
            raise BlockStateError("the match is admitted or released already")
        num_tokens = match.tokens.num_tokens
        num_blocks = blocks_for(num_tokens, self.config.block_size)
        num_shared = self._num_shareable(match.chain)
        if not self._fits(match, num_blocks - num_shared, max_new_tokens, num_sequences):
            return None
        table = BlockTable(
            match.tokens.fork(),
            [],
            num_tokens=num_tokens,
            num_computed_tokens=match.num_cached_tokens,
            max_tokens=num_tokens + max_new_tokens,
        )
        table.num_sequences = num_sequences
        reasons = self._explainer.count(match, num_shared=num_shared, num_blocks=num_blocks)
        fresh = self._allocate(num_blocks - num_shared)
        table.block_ids = match.chain[:num_shared] + fresh
        table.num_indexed = num_shared
        table.detached = not self.config.enabled
        try:
            self._table_index.extend(table, table.tokens.num_full_blocks)
        except BaseException:
            self._index.remove(self._pool.release(fresh[::-1]))
            raise
        copies = self._copies_of(match, table, num_shared)
        self._pool.reference(match.chain[:num_shared])
        self._tables[table] = None
        num_cached_tokens = match.num_cached_tokens
        self.release_match(match)
        return Allocation(table, num_cached_tokens, copies, reasons)

    def _num_shareable(self, chain: list[int]) -> int:
        """Leading blocks that can be used in place under the sharing cap; all behind them become copies.

        A block behind a copy is copied too, so that who holds a block always holds its parent.
        """
        room = self._max_shared_blocks - self._pool.num_shared
        if room >= len(chain):
            return len(chain)
        ref_count, pins = self._pool.ref_count, self._pool.pins
        for position, block in enumerate(chain):
            if ref_count[block] == 1 and block not in pins:
                if room <= 0:
                    return position
                room -= 1
        return len(chain)

    def _fits(self, match: Match, num_uncached: int, max_new_tokens: int, num_sequences: int) -> bool:
        wanted = num_uncached
        if self._tables:  # alone, a request needs nothing kept back for others
            num_tokens = match.tokens.num_tokens
            wanted += reserved_blocks(
                self.config,
                num_tokens=num_tokens,
                num_blocks=blocks_for(num_tokens, self.config.block_size),
                max_tokens=num_tokens + max_new_tokens,
                num_sequences=num_sequences,
            )
            wanted += sum(table_reserve(self.config, table) for table in self._tables)
        if wanted > self._pool.num_available and match.partial_source is not None:
            self._pool.unlock((match.partial_source,))  # it may be the very block that is missing
            match.partial_source, match.overlap = None, 0
        return wanted <= self._pool.num_available

    def _allocate(self, count: int) -> list[int]:
        blocks, evicted = self._pool.allocate(count)
        if evicted:
            self._counters["evicted_blocks"] += len(evicted)
            self._ghosts.add(self._index.forget(evicted))
        return blocks

    def _copies_of(self, match: Match, table: BlockTable, num_shared: int) -> list[CopyOp]:
        chain = match.chain
        block_size = self.config.block_size
        copies = [CopyOp(chain[i], table.block_ids[i], block_size) for i in range(num_shared, len(chain))]
        self._counters["share_cap_copies"] += len(copies)
        if match.partial_source is not None:
            copies.append(CopyOp(match.partial_source, table.block_ids[len(chain)], match.overlap))
        self._count_copies(copies)
        return copies

    def _count_copies(self, copies: list[CopyOp]) -> None:
        self._counters["copies"] += len(copies)
        self._counters["copied_tokens"] += sum(copy.num_tokens for copy in copies)

    def grow(self, table: BlockTable, num_tokens: int) -> list[CopyOp] | None:
        """Make sure that slots exist for tokens [0, num_tokens) and that those not computed yet may be written.

        None: no block is left and nothing changed; the scheduler preempts. A block that others refer to is replaced
        by a copy before the first write.
        """
        self._check_running(table)
        block_ids, block_size = table.block_ids, self.config.block_size
        num_blocks = blocks_for(num_tokens, block_size)
        written = range(table.num_computed_tokens // block_size, min(num_blocks, len(block_ids)))
        shared = [i for i in written if self._pool.ref_count[block_ids[i]] > 1]
        num_new = max(0, num_blocks - len(block_ids))
        if len(shared) + num_new > self._pool.num_available:
            return None
        table.num_tokens = max(table.num_tokens, num_tokens)
        if not (shared or num_new):
            return []
        fresh = self._allocate(len(shared) + num_new)
        copies = [copy for i, block in zip(shared, fresh, strict=False) if (copy := self._replace(table, i, block))]
        self._count_copies(copies)
        block_ids += fresh[len(shared) :]
        return copies

    def _replace(self, table: BlockTable, position: int, block: int) -> CopyOp | None:
        """Put an own block in the place of a shared one."""
        source = table.block_ids[position]
        num_tokens = table.num_computed_tokens - position * self.config.block_size
        self._table_index.cut(table, position)
        table.block_ids[position] = block
        self._pool.release((source,))
        return CopyOp(source, block, num_tokens) if num_tokens > 0 else None

    def commit(self, table: BlockTable, num_computed_tokens: int, new_token_ids: Sequence[int] = ()) -> None:
        """KV of tokens [0, num_computed_tokens) is written and accepted; blocks that it fills become READY.

        Args:
            table: A running sequence.
            num_computed_tokens: Never less than before.
            new_token_ids: Accepted tokens behind all those known so far.
        """
        self._check_running(table)
        limit = min(table.num_tokens, table.tokens.num_tokens + len(new_token_ids))
        if not table.num_computed_tokens <= num_computed_tokens <= limit:
            raise BlockStateError(
                f"num_computed_tokens: got {num_computed_tokens}, wanted {table.num_computed_tokens} to {limit}"
            )
        if len(new_token_ids):
            table.tokens.append(new_token_ids)
        start = table.num_full_computed_blocks
        table.num_computed_tokens = num_computed_tokens
        stop = table.num_full_computed_blocks
        if stop > start:
            self._table_index.extend(table, stop)
            self._pool.mark_ready(table.block_ids[start : min(stop, table.num_indexed)])

    def free(self, table: BlockTable) -> None:
        """End a sequence: finished, aborted and preempted alike.

        READY blocks stay cached; PENDING ones vanish, so that who waits for them finds them gone and computes them.
        """
        self._check_running(table)
        del self._tables[table]
        num_indexed = table.num_indexed
        twins = self._table_index.finish(table) if self.config.enabled else []
        self._release(table.block_ids[num_indexed:])
        for twin in reversed(twins):  # a parent leaves the cache after its children
            self._pool.touch(twin)
        self._release(table.block_ids[:num_indexed])

    def fork(self, table: BlockTable) -> Fork | None:
        """Let a second sequence go on from the computed tokens of a running one; None when there is no room for it.

        Blocks are shared until one of the two writes; those beyond the sharing cap are copied at once. Slots that are
        not computed yet are not inherited.
        """
        self._check_running(table)
        block_size = self.config.block_size
        blocks = table.block_ids[: blocks_for(table.num_computed_tokens, block_size)]
        num_shared = self._num_shareable(blocks)
        if len(blocks) - num_shared > self._pool.num_available:
            return None
        fresh = self._allocate(len(blocks) - num_shared)
        self._pool.reference(blocks[:num_shared])
        fork = BlockTable(
            table.tokens.fork(),
            blocks[:num_shared] + fresh,
            num_tokens=table.num_computed_tokens,
            num_computed_tokens=table.num_computed_tokens,
            max_tokens=table.max_tokens,
        )
        fork.num_indexed = min(table.num_indexed, num_shared)
        fork.detached = table.detached or bool(fresh)
        self._tables[fork] = None
        table.num_sequences = max(1, table.num_sequences - 1)
        copies = [
            CopyOp(blocks[i], fork.block_ids[i], min(block_size, table.num_computed_tokens - i * block_size))
            for i in range(num_shared, len(blocks))
        ]
        self._counters["share_cap_copies"] += len(copies)
        self._count_copies(copies)
        return Fork(fork, copies)

    def _release(self, blocks: list[int]) -> None:
        self._index.remove(self._pool.release(blocks[::-1]))

    def pin(self, prompt: Prompt) -> PinResult:
        """Keep the READY full blocks of a prompt from eviction, within `max_pinned_ratio` and the sharing cap."""
        return self._retention.pin(self._ready_blocks(prompt), self._max_shared_blocks)

    def unpin(self, pin: Pin) -> None:
        """Give a pin back."""
        self._retention.unpin(pin)

    def prioritize(self, prompt: Prompt, *, level: int, expires_at: float = inf) -> Priority:
        """Evict the READY full blocks of a prompt after those of a lower level; policy `lru` does not look at it."""
        return self._retention.prioritize(self._ready_blocks(prompt), level, expires_at)

    def _ready_blocks(self, prompt: Prompt) -> list[int]:
        tokens = TokenBlocks.of_prompt(prompt, self.config, self._hasher)
        return self._ready(self._index.longest_chain(tokens, tokens.num_full_blocks))

    def end_priority(self, priority: Priority) -> None:
        """Give a priority back; harmless when it has expired."""
        self._retention.end(priority)

    def expire(self, now: float) -> None:
        """End the priorities whose time is over; the caller owns the clock."""
        self._retention.expire(now)

    def set_max_shared_ratio(self, ratio: float) -> None:
        """Change the sharing cap; a lower one stops new sharing, what is shared already drains."""
        if not 0.0 <= ratio <= 1.0:
            raise ValueError(f"max_shared_ratio: got {ratio}, wanted 0 to 1")
        self._max_shared_blocks = _share(ratio, self.config.num_blocks)

    def explain(self, prompt: Prompt, *, reveal_other_scopes: bool = False) -> Explanation:
        """Tell what of a prompt is cached now and where the nearest cached text differs. Changes nothing.

        Args:
            prompt: As for `match`.
            reveal_other_scopes: Say `other_scope` where another tenant has the block. For the operator only: a
                tenant must never see it.
        """
        return self._explainer.explain(self._find(prompt), self._pool.ready, reveal_other_scopes=reveal_other_scopes)

    def _check_running(self, table: BlockTable) -> None:
        if table not in self._tables:
            raise BlockStateError("the block table is freed already, or of another cache")

    def snapshot(self) -> CacheSnapshot:
        """Look at the pool."""
        pool = self._pool
        num_free = len(pool.free)
        return CacheSnapshot(
            total_blocks=pool.num_blocks,
            free_blocks=num_free,
            cached_blocks=pool.num_blocks - num_free - pool.num_active,
            active_blocks=pool.num_active,
            shared_blocks=pool.num_shared,
            pinned_blocks=len(pool.pins),
            shared_blocks_max=pool.num_shared_max,
            pinned_blocks_max=pool.num_pinned_max,
            counters=self._counters | {"hash_collisions": self._index.num_collisions},
        )

    def check_integrity(self) -> None:
        """Recompute every count from the tables, matches and pins; raise `BlockStateError` at any difference."""
        check_integrity(self._pool, self._index, list(self._tables), list(self._matches))


def _share(ratio: float, num_blocks: int) -> int:
    return int(ratio * num_blocks + 1e-9)
