"""`/admin/v1/losses`: what the cache could have given, what it gave, and where the difference went."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request

from gateway.accounting.accounting import Accounting
from gateway.accounting.losses import UNEXPLAINED, UNKNOWN, Miss
from gateway.admin_wire import SpanQuery, iso_time, read_query
from gateway.storage.minutes import MinuteSum
from gateway.storage.store import Store

Json = dict[str, Any]

NUM_TOP = 20
_SUMS = {
    "prompt_tokens": "sampled_prompt_tokens",
    "possible_tokens": "possible_tokens",
    "cached_tokens": "sampled_cached_tokens",
}
_LOST = "lost_tokens"


def add_losses_route(router: APIRouter, accounting: Accounting | None, store: Store) -> None:
    """Add the route; without accounting, or where it counts no losses, there is no data."""
    losses = accounting.losses if accounting is not None else None

    @router.get("/losses")
    async def show(request: Request) -> Json:
        """Sums of the sample over whole minutes, and the requests of this gateway that lost most."""
        since, until = read_query(request, SpanQuery).bounds(time.time())
        if accounting is not None:
            await accounting.settle()
        await store.log.flush()
        rows = await store.minutes.sums(since, until, names=[*_SUMS.values(), _LOST])
        return {
            "object": "losses",
            "since": iso_time(since),
            "until": iso_time(until),
            "sampling": accounting.savings.sampling if accounting is not None and losses is not None else None,
            **_printed(rows),
            "larger_pool": [{"blocks": blocks, "tokens": tokens} for blocks, tokens in losses.room_needed()]
            if losses is not None
            else [],
            "top": [_miss(miss) for miss in losses.top(since, until, NUM_TOP)] if losses is not None else [],
        }


def _printed(rows: Sequence[MinuteSum]) -> Json:
    """Print sums that close; where nothing was sampled there are none."""
    found = {row.name: round(row.value) for row in rows if row.name != _LOST}
    sums = {name: found.get(stored) for name, stored in _SUMS.items()}
    prompt, possible, cached = sums.values()
    if prompt is None or possible is None or cached is None:
        return dict.fromkeys((*_SUMS, "unseen_tokens")) | {"lost": []}
    lost: defaultdict[tuple[str, str], int] = defaultdict(int)
    for row in rows:
        if row.name == _LOST:
            reason, _, region = row.label.partition(":")
            lost[reason, region or UNKNOWN] += round(row.value)
    lost[UNEXPLAINED, UNKNOWN] += possible - cached - sum(lost.values())  # of a request that is just being added
    told = sorted(((tokens, *names) for names, tokens in lost.items() if tokens), reverse=True)
    return {
        **sums,
        "unseen_tokens": prompt - possible,
        "lost": [{"reason": reason, "region": region, "tokens": tokens} for tokens, reason, region in told],
    }


def _miss(miss: Miss) -> Json:
    return {
        "request_id": miss.request_id,
        "completion_id": miss.completion_id,
        "at": iso_time(miss.at),
        "tenant": miss.tenant,
        "reason": miss.reason,
        "region": miss.region,
        "lost_tokens": miss.lost_tokens,
        "prompt_tokens": miss.prompt_tokens,
    }
