"""The requests without blocks: who waits where, and who is asked next.

A request is matched against the cache when it comes, when what it waits for has changed, and when it is its turn; never
in every step.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from engine.config import SchedulerConfig
from engine.lanes import LaneQueue
from engine.request import Lane, Request
from engine.single_flight import SingleFlight
from prefixcache import PrefixCache
from prefixcache.block_table import Match

MAX_BYPASSES = 16
"""Younger requests of the other lane that may be admitted before one that waits for memory."""


class WaitingRoom:
    """Two lanes, and the waiters for a prefix that is being computed."""

    def __init__(self, config: SchedulerConfig, cache: PrefixCache, running: list[Request]) -> None:
        """Args: running: the scheduler's list, read only: who computes a prefix is found in it."""
        self._threshold = config.long_prefill_token_threshold
        self._cache = cache
        self._running = running
        self._queues = {lane: LaneQueue() for lane in Lane}
        self._flight = SingleFlight()

    def __len__(self) -> int:
        return sum(map(len, self._queues.values())) + len(self._flight)

    def __iter__(self) -> Iterator[Request]:
        return chain(*self._queues.values(), self._flight)

    def oldest(self) -> Request:
        """Return who waits longest in a lane, where somebody does."""
        oldest = [request for queue in self._queues.values() if (request := queue.oldest()) is not None]
        return min(oldest, key=lambda request: request.arrival)

    def add(self, request: Request) -> None:
        """Put a request where it waits: in a lane, or for who computes its prefix right now."""
        request.lane = Lane.SHORT
        if request.num_tokens > self._threshold:
            with self.match(request) as match:
                if (owner := self._owner_of(match)) is not None:
                    self._wait(request, match, owner)
                else:
                    self._put_into_lane(request, match)
        else:
            self._queues[request.lane].add(request)

    def add_preempted(self, request: Request) -> None:
        """The same; and no younger one of its lane goes before it."""
        self.add(request)
        if request not in self._flight:
            self._queues[request.lane].stall(request)

    def remove(self, request: Request) -> None:
        """A waiting request is admitted or gone."""
        if request in self._flight:
            self._flight.remove(request)
        else:
            self._queues[request.lane].remove(request)
            self._flight.give_up_hope(request)

    def next(self, lane: Lane) -> Request | None:
        """Return who may be admitted next; None: nobody, or nothing has changed since it found no memory."""
        queue = self._queues[lane]
        if queue.is_asleep and self._running:
            return None
        request = queue.next()
        if request is None:
            return None
        for other in self._queues.values():
            stalled = other.stalled
            if stalled and stalled.arrival < request.arrival and stalled.num_bypasses >= MAX_BYPASSES:
                return None
        return request

    def match(self, request: Request) -> Match:
        """Find what of a request is cached."""
        return self._cache.match(request.resume_prompt(self._cache.config.block_size))

    def leaves_lane(self, request: Request, match: Match) -> bool:
        """Move a request whose turn it is, where the match tells that it has to wait elsewhere."""
        if (owner := self._owner_of(match)) is not None:
            self.remove(request)
            self._wait(request, match, owner)
            return True
        if request.lane is Lane.SHORT and self._lane_of(match) is Lane.LONG:  # what was cached is evicted
            self.remove(request)
            self._put_into_lane(request, match)
            return True
        return False

    def stall(self, request: Request) -> None:
        """The request whose turn it is found no room: it is asked again when blocks were given back."""
        self._queues[request.lane].stall(request)
        self._queues[request.lane].is_asleep = True

    def admit(self, request: Request, *, bypasses: bool) -> None:
        """The request whose turn it is runs now, on blocks that older ones might have used if it `bypasses` them."""
        self.remove(request)
        for queue in self._queues.values():
            if bypasses and queue.stalled is not None and queue.stalled.arrival < request.arrival:
                queue.stalled.num_bypasses += 1
        for follower in self._flight.followers(request):
            self.remove(follower)
            self.add(follower)

    def ask_again(self) -> None:
        """Ask those again who found no memory: there may be more now."""
        for queue in self._queues.values():
            queue.is_asleep = False

    def wake(self, owner: Request) -> None:
        """A running request computed something or lost its blocks: ask those again who waited for that."""
        if owner.table is None:
            self.ask_again()
        for waiter in self._flight.take_due(owner):
            self.add(waiter)

    def lane_of_running(self, request: Request) -> Lane:
        """Return the lane in which a prompt with blocks is computed: no short prompt waits for one in the long lane."""
        return self._flight.lane(request)

    def order_of_running(self, request: Request) -> int:
        """Return a sort key of such prompts: when it, or the first of those who wait for it, came."""
        return self._flight.arrival(request)

    def charge(self, request: Request, service: float) -> None:
        """A request's tenant was served in the request's lane."""
        self._queues[request.lane].share.charge(request.tenant, service)

    def _lane_of(self, match: Match) -> Lane:
        """Return the lane for what neither the cache has nor somebody else computes."""
        num_tokens = match.tokens.num_tokens - match.num_cached_tokens - match.num_pending_tokens
        return Lane.LONG if num_tokens > self._threshold else Lane.SHORT

    def _put_into_lane(self, request: Request, match: Match) -> None:
        request.lane = self._lane_of(match)
        self._queues[request.lane].add(request)
        block = len(match.chain)
        if request.lane is Lane.LONG and block < match.tokens.num_full_blocks:
            self._flight.hope(request, match.tokens.keys(block, block + 1)[0])

    def _owner_of(self, match: Match) -> Request | None:
        """Return who computes what is missing behind a match right now."""
        if match.pending_block is None:
            return None
        position, ids = len(match.chain), [match.pending_block]
        return next((r for r in self._running if r.table and r.table.block_ids[position : position + 1] == ids), None)

    def _wait(self, request: Request, match: Match, owner: Request) -> None:
        """Never dearer than to compute it again: the owner runs, and takes over the request's place."""
        request.lane = self._lane_of(match)
        num_tokens = (len(match.chain) + match.num_pending_blocks) * match.block_size
        self._flight.wait(request, owner, num_tokens=num_tokens)
