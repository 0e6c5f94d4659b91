"""Two lanes for prompts over one block pool: short ones for latency, long ones for throughput.

A lane is about what is left to compute, so a long prompt that is cached is a short one. Decoding is in no lane: every
running answer gets its token in every step.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Iterator
from itertools import chain
from operator import attrgetter

from engine.fairness import FairShare
from engine.request import Lane, Request

LONG_LANE_SHARE = 1 / 8
"""Of a step's prefill, to the long lane while both lanes have work: it never starves."""
SHORT_LANE_HEADROOM = 1 / 8
"""Of blocks and sequences: the short lane's, used or not, while anything runs. Else a short prompt would wait for the end
of a long answer."""


class LaneQueue:
    """The requests of one lane that wait for blocks.

    Next is the oldest request of the tenant that was served least. One that was to be next and found no room stays
    next until it has found it, so no stream of small requests can hold it up.
    """

    def __init__(self) -> None:
        self.share = FairShare()
        self.stalled: Request | None = None
        """Next, and waits for memory."""
        self.is_asleep = False
        """It found no memory, and no blocks have been given back since."""
        self._tenants: dict[str, list[Request]] = {}  # oldest first
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Request]:
        return chain.from_iterable(self._tenants.values())

    def add(self, request: Request) -> None:
        """Queue a request behind the older ones of its tenant."""
        queue = self._tenants.get(request.tenant)
        if queue is None:
            queue = self._tenants[request.tenant] = []
            self.share.enter(request.tenant)
        insort(queue, request, key=attrgetter("arrival"))
        self._length += 1

    def remove(self, request: Request) -> None:
        """Take a request out."""
        queue = self._tenants[request.tenant]
        queue.remove(request)
        self._length -= 1
        if not queue:
            del self._tenants[request.tenant]
            self.share.leave(request.tenant)
        if self.stalled is request:
            self.stalled = None
            self.is_asleep = False

    def stall(self, request: Request) -> None:
        """Let no other request of this lane go before this one, unless an older one waits for memory, too."""
        if self.stalled is None or request.arrival <= self.stalled.arrival:
            self.stalled = request
            self.is_asleep = False

    def next(self) -> Request | None:
        """Return who is to be admitted next."""
        if self.stalled is not None or not self._tenants:
            return self.stalled
        served = self.share.served
        tenant = min(self._tenants, key=lambda tenant: (served(tenant), self._tenants[tenant][0].arrival))
        return self._tenants[tenant][0]

    def oldest(self) -> Request | None:
        """Return who waits longest."""
        return min((queue[0] for queue in self._tenants.values()), key=attrgetter("arrival"), default=None)


def count_by_lane(requests: Iterable[Request]) -> dict[str, int]:
    """Return how many of the requests are in each lane; with blocks, it is the one that their prompt was computed in."""
    lanes = [request.lane for request in requests]
    return {lane.value: lanes.count(lane) for lane in Lane}
