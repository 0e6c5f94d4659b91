"""The prefix cache as the scheduler sees it: match, admit, grow, commit, fork, free.

Single-threaded, no clock and no I/O. Decides and returns `CopyOp`s; the model runner moves the bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from math import inf

from prefixcache.admission import blocks_for, reserved_blocks, table_reserve
from prefixcache.block_index import BlockIndex
from prefixcache.block_pool import BlockPool
from prefixcache.block_table import Allocation, BlockTable, Fork, Match
from prefixcache.finder import Finder
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
    Reason,
)
from prefixcache.policy import POLICIES
from prefixcache.reasons import Explainer
from prefixcache.retention import Priority, Retention
from prefixcache.table_index import TableIndex
from prefixcache.table_view import TableView


class PrefixCache:
    """Owns every block of one engine's KV pool."""

    def __init__(self, config: PrefixCacheConfig, *, hasher: Hasher = xxh3_128) -> None:
        self.config = config
        self._pool = BlockPool(config.num_blocks, POLICIES[config.policy])
        self._index = BlockIndex(config.num_blocks)
        self._finder = Finder(config, self._index, self._pool.ready, hasher)
        self._ghosts = GhostList(config.ghost_factor * config.num_blocks)
        self._table_index = TableIndex(self._pool, self._index)
        self._retention = Retention(self._pool, self._index, _share(config.max_pinned_ratio, config.num_blocks))
        self._explainer = Explainer(self._index, self._pool.ready, self._ghosts)
        self._tables: dict[BlockTable, None] = {}
        self._matches: dict[Match, None] = {}
        self.set_max_shared_ratio(config.max_shared_ratio)
        names = ("evicted_blocks", "copies", "copied_tokens", "share_cap_copies", "hash_collisions")
        self._counters = dict.fromkeys(names, 0)

    def max_request_tokens(self, prompt: Prompt | None = None) -> int:
        """A request whose prompt + max_tokens is larger cannot be admitted; pins lower it while they last.

        Args:
            prompt: Its own first blocks, where pinned, are used in place and do not count against it.
        """
        pins = self._pool.pins
        num_own = 0 if prompt is None or not pins else sum(b in pins for b in self._finder.ready_blocks(prompt))
        return (self.config.num_blocks - len(pins) + num_own) * self.config.block_size

    def num_ready_tokens(self, prompt: Prompt) -> int:
        """Tokens in the leading full READY blocks of a prompt, the last one included; locks nothing."""
        return len(self._finder.ready_blocks(prompt)) * self.config.block_size

    def match(self, prompt: Prompt, *, max_full_blocks: int | None = None) -> Match:
        """Find the longest READY prefix and keep it from eviction until the match is admitted or released.

        At least the last token of a prompt is always left to compute, for its logits are needed. A match that is
        released makes what it found recent: somebody waits for it.

        Args:
            prompt: What to find.
            max_full_blocks: So many of its full blocks at most, and no part of another; None: all there is.
        """
        match = self._finder.find(prompt, self, max_full_blocks)
        self._pool.lock(match.locked_blocks)
        self._matches[match] = None
        self._counters["hash_collisions"] += match.is_collision
        return match

    def release_match(self, match: Match) -> None:
        """Unlock what a match holds; `Match.release` is the way to call this."""
        self._check_open(match)
        self._pool.unlock(match.locked_blocks[::-1])
        match.is_open = False
        del self._matches[match]

    def admit(
        self, match: Match, *, max_new_tokens: int, num_sequences: int = 1, headroom: int = 0, owner: int = 0
    ) -> Allocation | None:
        """Give a matched prompt all its blocks, or None when it does not fit beside the running requests.

        `headroom` blocks more must be left for others, unless nothing runs. Explanations name the `owner`.
        On None the match stays owned. Blocks that this request is the first to compute are indexed as PENDING.
        Whatever fails changes nothing, but that blocks may have been evicted for it.
        """
        self._check_open(match)
        if max_new_tokens < 0:
            raise ValueError(f"max_new_tokens: got {max_new_tokens}, wanted at least 0")
        if num_sequences < 1:
            raise ValueError(f"num_sequences: got {num_sequences}, wanted at least 1")
        num_tokens = match.tokens.num_tokens
        num_blocks = blocks_for(num_tokens, self.config.block_size)
        num_shared = self._num_shareable(match.chain)
        if not self._fits(match, num_blocks - num_shared, max_new_tokens, num_sequences, headroom):
            return None
        table = BlockTable(
            match.tokens.fork(),
            [],
            num_tokens=num_tokens,
            num_computed_tokens=match.num_cached_tokens,
            max_tokens=num_tokens + max_new_tokens,
        )
        table.num_sequences = num_sequences
        table.owner = owner
        reasons = self._explainer.count(match, num_shared=num_shared, num_blocks=num_blocks)
        explanation = self._explainer.explain(match, reasons)
        table.num_indexed = num_shared
        table.detached = not self.config.enabled
        with self._take(match.chain[:num_shared], num_blocks - num_shared) as table.block_ids:
            self._table_index.extend(table, table.tokens.num_full_blocks)
            copies = self._copies_of(match, table, num_shared)
            self.release_match(match)
        self._tables[table] = None
        self._count_copies(copies, num_capped=len(match.chain) - num_shared)
        return Allocation(table, table.num_computed_tokens, copies, reasons, explanation)

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

    def _fits(self, match: Match, num_uncached: int, max_new_tokens: int, num_sequences: int, headroom: int) -> bool:
        wanted = num_uncached
        if self._tables:  # alone, a request needs nothing kept back for others
            wanted += headroom
            num_tokens = match.tokens.num_tokens
            wanted += reserved_blocks(
                self.config,
                num_tokens=num_tokens,
                num_blocks=blocks_for(num_tokens, self.config.block_size),
                max_tokens=num_tokens + max_new_tokens,
                num_sequences=num_sequences,
            )
            wanted += sum(table_reserve(self.config, table) for table in self._tables)
        source = match.partial_source
        is_missing_one = wanted == self._pool.num_available + 1
        if is_missing_one and source is not None and self._pool.has_one_lock_only(source):
            self._pool.unlock((source,))  # it is the very block that is missing
            match.partial_source = None
        return wanted <= self._pool.num_available

    @contextmanager
    def _take(self, shared: Sequence[int], num_fresh: int) -> Iterator[list[int]]:
        """References to `shared` blocks, and to fresh ones behind them; when the body fails, none was taken."""
        fresh, evicted = self._pool.allocate(num_fresh)
        taken = fresh
        try:
            if evicted:
                self._counters["evicted_blocks"] += len(evicted)
                self._ghosts.add(self._index.forget(evicted))
            self._pool.reference(shared)
            taken = [*shared, *fresh]
            yield taken
        except BaseException:
            self._release(taken)
            raise

    def _copies_of(self, match: Match, table: BlockTable, num_shared: int) -> list[CopyOp]:
        chain, block_ids = match.chain, table.block_ids
        copies = [CopyOp(chain[i], block_ids[i], self.config.block_size) for i in range(num_shared, len(chain))]
        if match.partial_source is not None:
            copies.append(CopyOp(match.partial_source, block_ids[len(chain)], match.num_partial_tokens))
        return copies

    def _count_copies(self, copies: list[CopyOp], *, num_capped: int = 0) -> None:
        self._counters["share_cap_copies"] += num_capped
        self._counters["copies"] += len(copies)
        self._counters["copied_tokens"] += sum(copy.num_tokens for copy in copies)

    def grow(self, table: BlockTable, num_tokens: int) -> list[CopyOp] | None:
        """Make sure that slots exist for tokens [0, num_tokens) and that those not computed yet may be written.

        None: no block is left and nothing changed; the scheduler preempts. A block that others refer to or may match
        is replaced by a copy before the first write.

        Raises:
            BlockStateError: more tokens than the request was admitted for.
        """
        self._check_running(table)
        if num_tokens > table.max_tokens:
            raise BlockStateError(f"num_tokens: got {num_tokens}, wanted at most {table.max_tokens}")
        pool, block_ids = self._pool, table.block_ids
        num_blocks = blocks_for(num_tokens, self.config.block_size)
        written = range(table.num_full_computed_blocks, min(num_blocks, len(block_ids)))
        replaced = [i for i in written if pool.ref_count[block_ids[i]] > 1 or pool.ready[block_ids[i]]]
        num_fresh = len(replaced) + max(0, num_blocks - len(block_ids))
        if num_fresh > pool.num_available:
            return None
        copies = []
        if num_fresh:
            with self._take((), num_fresh) as fresh:
                copies = [self._replace(table, *pair) for pair in zip(replaced, fresh, strict=False)]
            block_ids += fresh[len(replaced) :]
            self._count_copies(copies)
        table.num_tokens = max(table.num_tokens, num_tokens)
        return copies

    def _replace(self, table: BlockTable, position: int, block: int) -> CopyOp:
        """Put an own block in the place of a shared one, which holds computed tokens: only those are shared."""
        source = table.block_ids[position]
        self._table_index.cut(table, position)
        self._pool.release((source,))
        table.block_ids[position] = block
        return CopyOp(source, block, table.num_computed_tokens - position * self.config.block_size)

    def commit(self, table: BlockTable, num_computed_tokens: int, new_token_ids: Sequence[int] = ()) -> None:
        """KV of tokens [0, num_computed_tokens) is written and accepted; blocks that it fills become READY.

        Args:
            table: A running sequence.
            num_computed_tokens: Never less than before.
            new_token_ids: Accepted tokens behind all those known so far.

        Raises:
            BlockStateError: the tokens are not known or have no slots, or a block that they are written to is shared,
                because the table was forked after `grow`.
        """
        self._check_running(table)
        limit = min(table.num_tokens, table.tokens.num_tokens + len(new_token_ids))
        if not table.num_computed_tokens <= num_computed_tokens <= limit:
            raise BlockStateError(
                f"num_computed_tokens: got {num_computed_tokens}, wanted {table.num_computed_tokens} to {limit}"
            )
        start = table.num_full_computed_blocks
        written = table.block_ids[start : blocks_for(num_computed_tokens, self.config.block_size)]
        if num_computed_tokens > table.num_computed_tokens and any(self._pool.ref_count[b] > 1 for b in written):
            raise BlockStateError("num_computed_tokens: a block of the table is shared, wanted `grow` after a fork")
        if len(new_token_ids):
            table.tokens.append(new_token_ids)
        stop = num_computed_tokens // self.config.block_size
        if stop > start:
            self._table_index.extend(table, stop)
            self._pool.mark_ready(table.block_ids[start : min(stop, table.num_indexed)])
        table.num_computed_tokens = num_computed_tokens

    def free(self, table: BlockTable) -> None:
        """End a sequence: finished, aborted and preempted alike.

        READY blocks stay cached; PENDING ones vanish, so that who waits for them finds them gone and computes them.
        """
        self._check_running(table)
        num_indexed = table.num_indexed
        twins = self._table_index.finish(table) if self.config.enabled else []
        del self._tables[table]
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
        with self._take(blocks[:num_shared], len(blocks) - num_shared) as block_ids:
            fork = BlockTable(
                table.tokens.fork(),
                block_ids,
                num_tokens=table.num_computed_tokens,
                num_computed_tokens=table.num_computed_tokens,
                max_tokens=table.max_tokens,
            )
        fork.owner = table.owner
        fork.num_indexed = min(table.num_indexed, num_shared)
        fork.detached = table.detached or num_shared < len(blocks)
        self._tables[fork] = None
        table.num_sequences = max(1, table.num_sequences - 1)
        copies = [
            CopyOp(blocks[i], fork.block_ids[i], min(block_size, table.num_computed_tokens - i * block_size))
            for i in range(num_shared, len(blocks))
        ]
        self._count_copies(copies, num_capped=len(copies))
        return Fork(fork, copies)

    def forgo_forks(self, table: BlockTable) -> None:
        """Reserve nothing any more for forks that admission was asked for: they will not come."""
        self._check_running(table)
        table.num_sequences = 1

    def _release(self, blocks: list[int]) -> None:
        self._index.remove(self._pool.release(blocks[::-1]))

    def pin(self, prompt: Prompt) -> PinResult:
        """Keep the READY full blocks of a prompt from eviction, within `max_pinned_ratio` and the sharing cap."""
        return self._retention.pin(self._finder.ready_blocks(prompt), self._max_shared_blocks, list(self._tables))

    def unpin(self, pin: Pin) -> None:
        """Give a pin back."""
        self._retention.unpin(pin)

    def prioritize(self, prompt: Prompt, *, level: int, expires_at: float = inf) -> Priority:
        """Evict the READY full blocks of a prompt after those of a lower level; policy `lru` does not look at it."""
        return self._retention.prioritize(self._finder.ready_blocks(prompt), level, expires_at)

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
        self.max_shared_ratio = ratio
        self._max_shared_blocks = _share(ratio, self.config.num_blocks)

    def set_growth_reserve(self, num_tokens: int) -> None:
        """Change the growth that admission keeps free for every running sequence, from the next admission on."""
        self.config = replace(self.config, growth_reserve=num_tokens)

    def explain(self, prompt: Prompt) -> Explanation:
        """Tell what of a prompt is cached now and where the nearest cached text differs. Changes nothing."""
        match = self._finder.find(prompt, self)
        num_blocks = blocks_for(match.tokens.num_tokens, self.config.block_size)
        reasons = self._explainer.count(match, num_shared=len(match.chain), num_blocks=num_blocks)
        return self._explainer.explain(match, reasons)

    def reveal(self, prompt: Prompt, explanation: Explanation) -> Explanation:
        """Say `other_scope` where another tenant had the block then. For the operator: a tenant must never see it."""
        if explanation.reason is not Reason.NEVER_CACHED:
            return explanation
        is_elsewhere = self._explainer.is_elsewhere(self._finder.tokens_of(prompt), explanation)
        return replace(explanation, reason=Reason.OTHER_SCOPE) if is_elsewhere else explanation

    def _check_open(self, match: Match) -> None:
        if match not in self._matches:
            raise BlockStateError("the match is admitted or released already, or of another cache")

    def _check_running(self, table: BlockTable) -> None:
        if table not in self._tables:
            raise BlockStateError("the block table is freed already, or of another cache")

    def view(self, table: BlockTable) -> TableView:
        """Look at the blocks of a running sequence."""
        self._check_running(table)
        return TableView.of(table, self._pool)

    def blocks_by_namespace(self) -> dict[bytes, int]:
        """Count the blocks, READY and PENDING, that can be or will be found in each namespace."""
        return self._index.count_by_namespace()

    def snapshot(self) -> CacheSnapshot:
        """Look at the pool."""
        return self._pool.snapshot(
            shared_blocks_limit=self._max_shared_blocks,
            pinned_blocks_limit=self._retention.max_pinned_blocks,
            counters=dict(self._counters),
        )

    def check_integrity(self) -> None:
        """Recompute every count from the tables, matches and pins; raise `BlockStateError` at any difference."""
        check_integrity(self._pool, self._index, list(self._tables), list(self._matches))


def _share(ratio: float, num_blocks: int) -> int:
    return int(ratio * num_blocks + 1e-9)
