"""Upstreams, as the overview looks at what is behind a gateway."""

from __future__ import annotations

from typing import Literal

from gateway.overview import Look
from gateway.problems import Facts
from gateway.upstream.pool import UpstreamPool


class UpstreamsBehind:
    """Servers that others run: nobody here sees their blocks."""

    mode: Literal["engine", "upstream"] = "upstream"

    def __init__(self, pool: UpstreamPool) -> None:
        self.model: str | None = None
        self._pool = pool

    def state(self) -> str:
        """Say whether any answers."""
        return self._pool.state()

    async def look(self) -> Look | None:
        """There is no engine to look at."""
        return None

    def facts(self, _: Look | None) -> Facts:
        """Tell who does not answer."""
        silent = tuple(upstream.name for upstream in self._pool.upstreams if not upstream.is_up)
        return Facts(num_upstreams=len(self._pool.upstreams), silent_upstreams=silent)
