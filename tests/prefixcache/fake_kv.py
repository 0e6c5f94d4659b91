"""A KV pool that holds, instead of numbers, what the numbers would depend on."""

from __future__ import annotations

from collections.abc import Iterator

from prefixcache import BlockTable, CopyOp, PrefixCache


class FakeKV:
    """Slot contents. The KV of a token depends on every token before it and on the namespace of every block.

    Wrong reuse of any kind, of another tenant's, another text's, a recycled or a half-written block, shows as a slot
    with the wrong history.
    """

    def __init__(self, cache: PrefixCache) -> None:
        self._cache = cache
        self._size = cache.config.block_size
        self.slots: list[list[object]] = [[None] * self._size for _ in range(cache.config.num_blocks)]

    def perform(self, copies: list[CopyOp]) -> None:
        for copy in copies:
            assert copy.src != copy.dst
            self.slots[copy.dst][: copy.num_tokens] = self.slots[copy.src][: copy.num_tokens]

    def write(self, table: BlockTable, start: int, stop: int) -> None:
        """Compute tokens [start, stop), which reads all before them."""
        self.check(table, start)
        for position, wanted in histories(table, start, stop):
            block = table.block_ids[position // self._size]
            assert self._cache._pool.ref_count[block] == 1, "wrote to a block in common use"
            assert not self._cache._pool.ready[block], "wrote to a block that others may match"
            self.slots[block][position % self._size] = wanted

    def check(self, table: BlockTable, num_tokens: int) -> None:
        """Tokens [0, num_tokens) are where the table says, with the right history."""
        for position, wanted in histories(table, 0, num_tokens):
            slot = self.slots[table.block_ids[position // self._size]][position % self._size]
            assert slot == wanted, f"wrong KV at token {position} of {table.block_ids}"

    def check_index(self) -> None:
        """Whatever can be matched holds what the index says."""
        index, ready = self._cache._index, self._cache._pool.ready
        for block in index.by_key.values():
            if ready[block]:
                chain = [block]
                while index.parents[chain[-1]] >= 0:
                    chain.append(index.parents[chain[-1]])
                chain.reverse()
                text = b"".join(index.chunks[b] for b in chain)
                spaces = tuple(index.namespaces[b] for b in chain)
                assert self.slots[block] == [(text[: len(text) - 4 * n], spaces) for n in reversed(range(self._size))]


def histories(table: BlockTable, start: int, stop: int) -> Iterator[tuple[int, object]]:
    """(position, the text up to it and the namespaces it lives in) of tokens [start, stop)."""
    text, size = bytes(table.tokens._data), table.block_size
    spaces = tuple(table.tokens.namespace_at(block) for block in range(-(-stop // size)))
    for position in range(start, stop):
        yield position, (text[: 4 * (position + 1)], spaces[: position // size + 1])
