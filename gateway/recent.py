"""The last requests by name: a client's `x-request-id` leads to the completion that the engine knows."""

from __future__ import annotations

from collections import OrderedDict

MAX_REQUESTS = 4096


class RecentRequests:
    """Bounded; where a client uses an id again the newest completion counts."""

    def __init__(self, *, max_requests: int = MAX_REQUESTS) -> None:
        self._max_requests = max_requests
        self._completion_ids: OrderedDict[str, str] = OrderedDict()

    def note(self, request_id: str, completion_id: str) -> None:
        """Remember both names of a request; forget the oldest beyond the bound."""
        self._completion_ids.pop(request_id, None)
        self._completion_ids[request_id] = completion_id
        if len(self._completion_ids) > self._max_requests:
            self._completion_ids.popitem(last=False)

    def completion_id(self, name: str) -> str:
        """Return the completion of an `x-request-id`; any other name as it is."""
        return self._completion_ids.get(name, name)
