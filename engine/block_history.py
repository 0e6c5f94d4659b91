"""What is remembered of requests: block tables of those that run and that ended last, and what was cached for them.

Loads no torch.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from engine.calls import RequestBlocks
from engine.explanations import Explanations
from engine.request import Request
from prefixcache import PrefixCache
from prefixcache.table_view import TableView

MAX_REQUESTS = 256
MAX_BLOCKS = 65_536
"""Over all ended requests together: a few megabytes."""


@dataclass(frozen=True, slots=True)
class _Seen:
    """A request at one moment."""

    num_prompt_tokens: int
    num_cached_tokens: int
    reasons: dict[str, int]
    table: TableView | None

    @property
    def num_blocks(self) -> int:
        return len(self.table.block_ids) if self.table else 0

    def told(self, status: str) -> RequestBlocks:
        blocks = self.table.blocks() if self.table else []
        return RequestBlocks(status, self.num_prompt_tokens, self.num_cached_tokens, self.reasons, blocks)


class BlockHistory:
    """Looks at a request's blocks, and remembers what it saw last."""

    def __init__(self, cache: PrefixCache, *, max_requests: int = MAX_REQUESTS, max_blocks: int = MAX_BLOCKS) -> None:
        self._cache = cache
        self._max_requests = max_requests
        self._max_blocks = max_blocks
        self._ended: OrderedDict[str, _Seen] = OrderedDict()
        self._num_blocks = 0
        self.explanations = Explanations()

    def view(self, request: Request) -> RequestBlocks:
        """Look at a request that waits or runs."""
        return self._look(request).told("waiting" if request.table is None else "running")

    def keep(self, request: Request) -> None:
        """Remember a request that is about to end, while it still has its blocks; forget the oldest beyond the bounds."""
        self._forget(request.request_id)
        seen = self._ended[request.request_id] = self._look(request)
        self._num_blocks += seen.num_blocks
        while len(self._ended) > self._max_requests or self._num_blocks > self._max_blocks:
            self._forget(next(iter(self._ended)))

    def ended(self, request_id: str) -> RequestBlocks | None:
        """Return what an ended request had at its end; None: not known (any more)."""
        seen = self._ended.get(request_id)
        return seen.told("ended") if seen else None

    def _look(self, request: Request) -> _Seen:
        table = None if request.table is None else self._cache.view(request.table)
        return _Seen(request.num_prompt_tokens, request.num_cached_tokens, request.reasons, table)

    def _forget(self, request_id: str) -> None:
        seen = self._ended.pop(request_id, None)
        if seen is not None:
            self._num_blocks -= seen.num_blocks
