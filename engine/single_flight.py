"""Who waits for a prefix that another request computes right now: nobody computes it twice.

A waiter is asked again only when its owner has computed what it waits for, or has lost its blocks. Then the first
waiter finds nothing pending and becomes the owner for the others. A prompt that came before anybody computed its prefix
waits in the long lane; as soon as somebody does, it follows.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from engine.request import Lane, Request


class SingleFlight:
    """Waiters by owner; an owner is a running request."""

    def __init__(self) -> None:
        self._waiters: dict[str, list[Request]] = {}  # by the owner's key
        self._owners: dict[str, str] = {}  # the waiter's key -> the owner's
        self._hopefuls: dict[bytes, list[Request]] = {}  # by the hash of the next block they need

    def __len__(self) -> int:
        return len(self._owners)

    def __iter__(self) -> Iterator[Request]:
        return chain.from_iterable(self._waiters.values())

    def __contains__(self, request: Request) -> bool:
        return request.key in self._owners

    def wait(self, request: Request, owner: Request, *, num_tokens: int) -> None:
        """Let a request wait until the owner has computed its first `num_tokens` tokens."""
        request.awaited_tokens = num_tokens
        self._waiters.setdefault(owner.key, []).append(request)
        self._owners[request.key] = owner.key

    def remove(self, request: Request) -> None:
        """A waiter is gone."""
        owner = self._owners.pop(request.key)
        self._waiters[owner].remove(request)
        if not self._waiters[owner]:
            del self._waiters[owner]

    def take_due(self, owner: Request) -> list[Request]:
        """Remove and return, oldest first, those whose wait is over; all when the owner does not run any more."""
        waiters = self._waiters.get(owner.key)
        if waiters is None:
            return []
        due = [w for w in waiters if owner.table is None or w.awaited_tokens <= owner.num_computed_tokens]
        for waiter in due:
            self.remove(waiter)
        return sorted(due, key=lambda waiter: waiter.arrival)

    def hope(self, request: Request, block_hash: bytes) -> None:
        """Remember a request that waits in a lane and could do with the block of this hash."""
        request.next_block_hash = block_hash
        self._hopefuls.setdefault(block_hash, []).append(request)

    def give_up_hope(self, request: Request) -> None:
        """It waits there no longer."""
        hopefuls = self._hopefuls.get(request.next_block_hash)
        if hopefuls is not None and request in hopefuls:
            hopefuls.remove(request)
            if not hopefuls:
                del self._hopefuls[request.next_block_hash]

    def followers(self, owner: Request) -> list[Request]:
        """Return the requests that could do with blocks that this one, just admitted, is going to compute."""
        if not self._hopefuls or owner.table is None:
            return []
        tokens = owner.table.tokens
        block_hashes = tokens.keys(owner.table.num_full_computed_blocks, tokens.num_full_blocks)
        return [request for block_hash in block_hashes for request in self._hopefuls.get(block_hash, ())]

    def lane(self, owner: Request) -> Lane:
        """Return the lane of a request, or the one it inherits: a short prompt never waits in the long lane."""
        waiters = self._waiters.get(owner.key, ())
        return Lane.SHORT if any(waiter.lane is Lane.SHORT for waiter in waiters) else owner.lane

    def arrival(self, owner: Request) -> int:
        """Return when a request came, or the first of those who wait for it."""
        return min((waiter.arrival for waiter in self._waiters.get(owner.key, ())), default=owner.arrival)
