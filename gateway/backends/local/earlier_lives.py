"""Which prompts earlier lives of the worker had, so that a miss after a restart can say `cold_restart`.

Keeps fingerprints of block hashes, in memory and bounded. The namespace of a prompt is part of its hashes, so a tenant
only ever meets what was its own, and the seed is a life's own random secret: to ask about an earlier life, a prompt is
hashed again with that life's seed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from engine.messages import EngineReady
from gateway.backends.control import HashedPrompt
from prefixcache.hashing import hash_blocks
from prefixcache.interface import Namespace, Scope

MAX_LIVES = 3
"""Earlier lives that are remembered; one that got no prompt does not count."""
_SLOTS_PER_BLOCK = 4
_HEAD_BLOCKS = 8


class EarlierLives:
    """Told of each life and of what was admitted in it."""

    def __init__(self) -> None:
        self._present: _Life | None = None
        self._earlier: deque[_Life] = deque(maxlen=MAX_LIVES)

    def begin(self, ready: EngineReady) -> None:
        """A life gets a prompt; unless it is known already, the one before is over."""
        if self._present is not None:
            if self._present.hash_epoch == ready.hash_epoch:
                return
            self._earlier.append(self._present)
        self._present = _Life(ready)

    def note(self, prompt: HashedPrompt) -> None:
        """A prompt was admitted."""
        if self._present is not None and prompt.hash_epoch == self._present.hash_epoch:
            self._present.add(prompt.block_hashes)

    def num_blocks(self, prompt: HashedPrompt) -> int:
        """Return how many leading blocks of a prompt earlier lives had; 0 where all were admitted in this one."""
        present = self._present
        if not self._earlier or present is None:
            return 0
        num_present = present.num_sent(prompt.block_hashes) if prompt.hash_epoch == present.hash_epoch else 0
        if num_present * present.block_size + present.block_size > len(prompt.token_ids):
            return 0
        return max(life.num_leading(prompt) for life in self._earlier)


class _Life:
    """The last blocks of one life: fingerprints in a table in which a newer one can overwrite an older one."""

    def __init__(self, ready: EngineReady) -> None:
        self.hash_epoch = ready.hash_epoch
        self._seed = ready.hash_seed
        self.block_size = ready.block_size
        self._table = np.zeros(_SLOTS_PER_BLOCK * ready.num_blocks, dtype=np.uint64)

    def add(self, block_hashes: bytes) -> None:
        fingerprints = _fingerprints(block_hashes)
        self._table[self._slots(fingerprints)] = fingerprints

    def num_sent(self, block_hashes: bytes) -> int:
        """Leading blocks that were sent: a hash stands for all the text up to it, so the last known one tells."""
        known = np.flatnonzero(self._known(block_hashes))
        return int(known[-1]) + 1 if len(known) else 0

    def num_leading(self, prompt: HashedPrompt) -> int:
        scopes = [Scope(Namespace(namespace), num_blocks) for namespace, num_blocks in prompt.scopes]
        head = prompt.token_ids[: _HEAD_BLOCKS * self.block_size]
        if not self.num_sent(self._hashes(head, scopes)):
            return 0  # most prompts are new, and hashing a few blocks is cheaper than all
        return self.num_sent(self._hashes(prompt.token_ids, scopes))

    def _hashes(self, token_ids: npt.NDArray[np.int32], scopes: Sequence[Scope]) -> bytes:
        return hash_blocks(token_ids, block_size=self.block_size, scopes=scopes, seed=self._seed)

    def _known(self, block_hashes: bytes) -> npt.NDArray[np.bool_]:
        fingerprints = _fingerprints(block_hashes)
        known: npt.NDArray[np.bool_] = self._table[self._slots(fingerprints)] == fingerprints
        return known

    def _slots(self, fingerprints: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
        slots: npt.NDArray[np.uint64] = fingerprints % np.uint64(len(self._table))
        return slots


def _fingerprints(block_hashes: bytes) -> npt.NDArray[np.uint64]:
    """The first half of each hash; 0, which says that a slot is empty, becomes 1."""
    first_halves: npt.NDArray[np.uint64] = np.frombuffer(block_hashes, dtype="<u8")[::2]
    return np.where(first_halves == 0, np.uint64(1), first_halves)
