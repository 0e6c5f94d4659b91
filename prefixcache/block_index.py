"""Which READY or PENDING block holds which tokens: a hash finds it, equality decides.

A block's identity is its namespace, the uid of its parent and its token bytes. A uid is given out once and never
again, so a recycled block id is never mistaken for the parent that it used to be.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import compress, repeat
from operator import itemgetter

from prefixcache.interface import Namespace
from prefixcache.token_blocks import TokenBlocks

NO_BLOCK = -1
ROOT_UID = 0
FIRST_BATCH = 1
LARGEST_BATCH = 512


class BlockIndex:
    """Parallel lists by block id; slots of blocks that are not indexed are stale."""

    def __init__(self, num_blocks: int) -> None:
        self.by_key: dict[bytes, int] = {}
        self.keys: list[bytes] = [b""] * num_blocks
        """Empty: not indexed."""
        self.uids = [ROOT_UID] * num_blocks
        self.parent_uids = [ROOT_UID] * num_blocks
        self.parents = [NO_BLOCK] * num_blocks
        self.namespaces = [Namespace(b"")] * num_blocks
        self.chunks = [b""] * num_blocks
        self.owners = array("I", bytes(4 * num_blocks))
        """The caller's number for the sequence that computed the block."""
        self.next_uid = ROOT_UID + 1
        # Children of a block in its own namespace, newest first. Children in another namespace (a prompt's first
        # blocks, and tenants' tails behind a public prefix) are listed apart: one tenant must not crowd out another.
        self._newest_child = [NO_BLOCK] * num_blocks
        self._older = [NO_BLOCK] * num_blocks
        self._newer = [NO_BLOCK] * num_blocks
        self._openings: dict[tuple[Namespace, int], int] = {}

    def longest_chain(self, tokens: TokenBlocks, limit: int) -> list[int]:
        """The verified blocks of the longest indexed prefix, READY or not, of at most `limit` blocks."""
        chain: list[int] = []
        batch = FIRST_BATCH
        for namespace, start, stop, _ in tokens.runs(0, limit):
            while start < stop:
                end = min(stop, start + batch)
                found = self._verified(tokens.keys(start, end), tokens.chunks(start, end), namespace, chain)
                chain += found
                if len(found) < end - start:
                    return chain
                start = end
                batch = min(batch * 8, LARGEST_BATCH)
        return chain

    def _verified(self, keys: list[bytes], chunks: list[bytes], namespace: Namespace, chain: list[int]) -> list[int]:
        """The leading blocks of a run behind `chain` that are indexed and equal; a long equal run is compared in C."""
        blocks = list(map(self.by_key.get, keys, repeat(NO_BLOCK)))
        parent_uid = self.uids[chain[-1]] if chain else ROOT_UID
        if len(blocks) > 1 and NO_BLOCK not in blocks:
            of_blocks = itemgetter(*blocks)
            uids = of_blocks(self.uids)
            if (
                of_blocks(self.chunks) == tuple(chunks)
                and of_blocks(self.parent_uids) == (parent_uid, *uids[:-1])
                and of_blocks(self.namespaces) == (namespace,) * len(keys)
            ):
                return blocks
        found = []
        for key, chunk in zip(keys, chunks, strict=True):
            block = self.find(key, namespace, parent_uid, chunk)
            if block is None:
                break
            found.append(block)
            parent_uid = self.uids[block]
        return found

    def find(self, key: bytes, namespace: Namespace, parent_uid: int, chunk: bytes) -> int | None:
        """The indexed block with this hash and this identity; a hash without the identity is a collision, and a miss."""
        block = self.by_key.get(key)
        if block is None:
            return None
        if (
            self.parent_uids[block] == parent_uid
            and self.chunks[block] == chunk
            and self.namespaces[block] == namespace
        ):
            return block
        return None

    def insert(self, blocks: Sequence[int], tokens: TokenBlocks, start: int, parent: int, owner: int = 0) -> int:
        """Index blocks as positions [start, …) of a sequence behind the block `parent`, computed by `owner`.

        Stops before a hash that is taken: an index entry is never overwritten.

        Returns:
            How many were indexed.
        """
        done = 0
        try:
            for namespace, first, stop, opens_scope in tokens.runs(start, start + len(blocks)):
                run = blocks[done : done + stop - first]
                new = self._insert_run(run, tokens, first, parent=parent, namespace=namespace, opens_scope=opens_scope)
                done += new
                if new < len(run):
                    break
                parent = run[-1]
            for block in blocks[:done]:
                self.owners[block] = owner
        except BaseException:
            self.remove(blocks[::-1])
            raise
        return done

    def _insert_run(
        self,
        blocks: Sequence[int],
        tokens: TokenBlocks,
        start: int,
        *,
        parent: int,
        namespace: Namespace,
        opens_scope: bool,
    ) -> int:
        """Each block is whole before its key is entered, so that `remove` undoes it wherever this fails."""
        by_key, uid, parent_uid = self.by_key, self.next_uid, self.uid_of(parent)
        stop = start + len(blocks)
        self.next_uid += len(blocks)
        done = 0
        for block, key, chunk in zip(blocks, tokens.keys(start, stop), tokens.chunks(start, stop), strict=True):
            if key in by_key:
                break
            self.chunks[block] = chunk
            self.namespaces[block] = namespace
            self.uids[block] = uid
            self.parents[block] = parent
            self.parent_uids[block] = parent_uid
            self._newest_child[block] = self._older[block] = self._newer[block] = NO_BLOCK
            if done:
                self._newest_child[parent] = block
            else:
                self._join_siblings(block, opens_scope=opens_scope)
            self.keys[block] = key
            by_key[key] = block
            parent, parent_uid = block, uid
            uid += 1
            done += 1
        return done

    def _join_siblings(self, block: int, *, opens_scope: bool) -> None:
        """List the first block of a run under its parent, as the newest child."""
        parent = self.parents[block]
        if opens_scope:
            opening = (self.namespaces[block], self.parent_uids[block])
            older = self._openings.get(opening, NO_BLOCK)
            self._openings[opening] = block
        else:
            older = self._newest_child[parent]
            self._newest_child[parent] = block
        self._older[block] = older
        if older != NO_BLOCK:
            self._newer[older] = block

    def forget(self, blocks: Sequence[int]) -> list[bytes]:
        """Remove evicted blocks and tell their hashes."""
        keys = [self.keys[block] for block in blocks]
        self.remove(blocks)
        return keys

    def remove(self, blocks: Sequence[int]) -> None:
        """Forget blocks; those that are not indexed are skipped. Pass children before their parents."""
        newest_child, parents = self._newest_child, self.parents
        for block in blocks:
            key = self.keys[block]
            if not key:
                continue
            self.by_key.pop(key, None)  # missing where an insertion failed
            self.keys[block] = self.chunks[block] = b""
            parent = parents[block]
            if parent != NO_BLOCK and newest_child[parent] == block:
                newest_child[parent] = older = self._older[block]
                if older != NO_BLOCK:
                    self._newer[older] = NO_BLOCK
            else:
                self._leave_siblings(block)

    def _leave_siblings(self, block: int) -> None:
        older, newer = self._older[block], self._newer[block]
        if older != NO_BLOCK:
            self._newer[older] = newer
        if newer != NO_BLOCK:
            self._older[newer] = older
            return
        opening = (self.namespaces[block], self.parent_uids[block])
        if older != NO_BLOCK:
            self._openings[opening] = older
        else:
            del self._openings[opening]

    def uid_of(self, parent: int) -> int:
        """The uid that a child behind this block carries as its parent's."""
        return ROOT_UID if parent == NO_BLOCK else self.uids[parent]

    def children(self, parent: int, namespace: Namespace) -> Iterator[int]:
        """Indexed blocks directly behind `parent` in a namespace, newest first."""
        parent_uid = self.uid_of(parent)
        yield from self._siblings(self._openings.get((namespace, parent_uid), NO_BLOCK))
        if parent != NO_BLOCK and self.namespaces[parent] == namespace:
            yield from self._siblings(self._newest_child[parent])

    def count_by_namespace(self) -> dict[bytes, int]:
        """How many indexed blocks each namespace has; one pass in C: 6 ms for 100,000 blocks."""
        return Counter(compress(self.namespaces, self.keys))

    def ends_of(self, chunks: Sequence[bytes]) -> list[int]:
        """The last blocks of exactly this text in every namespace; walks all openings."""
        openings: dict[int, list[int]] = {}
        for (_, parent_uid), child in self._openings.items():
            openings.setdefault(parent_uid, []).append(child)
        ends = [NO_BLOCK]
        for chunk in chunks:
            heads = [head for end in ends for head in openings.get(self.uid_of(end), ())]
            heads += [self._newest_child[end] for end in ends if end != NO_BLOCK]
            ends = [child for head in heads for child in self._siblings(head) if self.chunks[child] == chunk]
        return ends

    def every_child(self) -> Iterator[int]:
        """All blocks that are listed as somebody's child."""
        for child in self._openings.values():
            yield from self._siblings(child)
        for parent in self.by_key.values():
            yield from self._siblings(self._newest_child[parent])

    def _siblings(self, child: int) -> Iterator[int]:
        while child != NO_BLOCK:
            yield child
            child = self._older[child]
