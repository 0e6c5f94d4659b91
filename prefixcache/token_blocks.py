"""The tokens of one sequence, cut into blocks, each with its hash and its namespace."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from struct import Struct, pack
from struct import error as struct_error

from prefixcache.hashing import HASH_BYTES, TOKEN_BYTES, Hasher, extend_hashes, scope_runs, tidy_scopes, token_view
from prefixcache.interface import Namespace, PrefixCacheConfig, Prompt, Scope, TokenArray


class TokenBlocks:
    """What the index is asked with, and what it stores: per block a hash, a namespace and the token bytes.

    A prompt is only looked at, so a first-block miss costs no copy of it; `fork` makes an own, growing one.
    """

    __slots__ = ("_chunk", "_config", "_data", "_hasher", "block_bytes", "block_size", "hashes", "scopes")

    def __init__(
        self,
        data: memoryview | bytearray,
        hashes: bytes,
        scopes: tuple[Scope, ...],
        config: PrefixCacheConfig,
        hasher: Hasher,
    ) -> None:
        self._data = data
        self._config = config
        self._hasher = hasher
        self.scopes = scopes
        self.block_size = config.block_size
        self.block_bytes = config.block_size * TOKEN_BYTES
        self._chunk = Struct(f"{self.block_bytes}s")
        self.hashes = hashes
        self._hash_new_blocks()

    @classmethod
    def of_prompt(cls, prompt: Prompt, config: PrefixCacheConfig, hasher: Hasher) -> TokenBlocks:
        """Take the hashes of the ingress, or hash again where they are missing or made with another seed."""
        num_blocks = len(prompt.token_ids) // config.block_size
        known = prompt.hash_epoch == config.hash_epoch and len(prompt.block_hashes) == num_blocks * HASH_BYTES
        if not len(prompt.token_ids):
            raise ValueError("token_ids: got none, wanted at least one token")
        if not prompt.scopes:
            raise ValueError("scopes: got none, wanted at least one")
        hashes = prompt.block_hashes if known else b""
        return cls(token_view(prompt.token_ids), hashes, tidy_scopes(prompt.scopes, num_blocks), config, hasher)

    def fork(self) -> TokenBlocks:
        """An independent sequence with the same tokens, which may grow."""
        return TokenBlocks(bytearray(self._data), self.hashes, self.scopes, self._config, self._hasher)

    @property
    def num_tokens(self) -> int:
        """Tokens known so far."""
        return len(self._data) // TOKEN_BYTES

    @property
    def num_full_blocks(self) -> int:
        """Blocks whose tokens are all known; these have hashes."""
        return len(self.hashes) // HASH_BYTES

    def append(self, token_ids: Sequence[int] | TokenArray) -> None:
        """Tokens behind those known so far; blocks that become full are hashed."""
        assert isinstance(self._data, bytearray), "a prompt does not grow, its fork does"
        try:
            self._data += pack(f"<{len(token_ids)}i", *token_ids)
        except struct_error as error:
            raise ValueError(f"token_ids: got {list(token_ids)}, wanted int32") from error
        self._hash_new_blocks()

    def keys(self, start: int, stop: int) -> list[bytes]:
        """Hashes of the full blocks [start, stop)."""
        return [key for (key,) in _KEY.iter_unpack(self.hashes[start * HASH_BYTES : stop * HASH_BYTES])]

    def chunks(self, start: int, stop: int) -> list[bytes]:
        """Token bytes of the full blocks [start, stop)."""
        data = memoryview(self._data)[start * self.block_bytes : stop * self.block_bytes]
        return [chunk for (chunk,) in self._chunk.iter_unpack(data)]

    def tokens_from(self, block: int, limit: int) -> bytes:
        """Token bytes from the start of a block on, at most a block and not beyond token `limit`."""
        start = block * self.block_bytes
        return bytes(self._data[start : min(start + self.block_bytes, limit * TOKEN_BYTES)])

    def window(self, start: int, stop: int) -> bytes:
        """Token bytes of the tokens [start, stop)."""
        return bytes(self._data[max(0, start) * TOKEN_BYTES : stop * TOKEN_BYTES])

    def runs(self, start: int, stop: int) -> Iterator[tuple[Namespace, int, int, bool]]:
        """Blocks [start, stop) cut at the borders of scopes, see `scope_runs`."""
        return scope_runs(self.scopes, start, stop)

    def namespace_at(self, block: int) -> Namespace:
        """The namespace a block lives in, also one that is not full."""
        return next(self.runs(block, block + 1))[0]

    def _hash_new_blocks(self) -> None:
        num_blocks = len(self._data) // self.block_bytes
        if num_blocks * HASH_BYTES > len(self.hashes):
            self.hashes = extend_hashes(
                self.hashes,
                memoryview(self._data),
                num_blocks,
                block_size=self._config.block_size,
                scopes=self.scopes,
                seed=self._config.hash_seed,
                hasher=self._hasher,
            )


_KEY = Struct(f"{HASH_BYTES}s")
