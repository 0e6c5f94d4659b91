"""`/admin/v1/series`: what came, what was cached and how long first tokens took, by steps of time, as charts draw it."""

from __future__ import annotations

import time
from collections.abc import Iterable
from itertools import groupby
from math import ceil
from operator import attrgetter
from typing import Annotated, Any

from fastapi import APIRouter
from pydantic import Field
from starlette.requests import Request

from gateway.admin_wire import SpanQuery, iso_time, read_query
from gateway.errors import InvalidRequestError
from gateway.first_tokens import HIT, MISS, counts_by_bucket, summary
from gateway.storage.minutes import MINUTE_SECONDS, MinuteSum
from gateway.storage.store import Store

Json = dict[str, Any]

MAX_POINTS = 1500
_USUAL_POINTS = 300
_DAY_SECONDS = 86400
_COUNTS = ("requests", "errors")
"""0 where a step has none of them; of all others it is not known then."""
_TOKENS = ("prompt_tokens", "cached_tokens", "sampled_prompt_tokens", "sampled_cached_tokens", "possible_tokens")
_FIRST_TOKENS = "first_tokens"


class SeriesQuery(SpanQuery):
    """`GET /series`; by default in at most 300 steps, or in days."""

    step: Annotated[int, Field(ge=MINUTE_SECONDS, le=_DAY_SECONDS, multiple_of=MINUTE_SECONDS)] | None = None


def add_series_route(router: APIRouter, store: Store) -> None:
    """Add the route. What this gateway still holds in memory is written before anything is read."""

    @router.get("/series")
    async def series(request: Request) -> Json:
        since, until, step = _span(read_query(request, SeriesQuery), time.time())
        await store.log.flush()
        rows = await store.minutes.sums(since, until, step, names=(*_COUNTS, *_TOKENS, _FIRST_TOKENS))
        points = [_point(at, sums) for at, sums in groupby(rows, attrgetter("at"))]
        return {
            "object": "series",
            "since": iso_time(since),
            "until": iso_time(until),
            "step": step,
            "points": points,
        }


def _span(query: SeriesQuery, now: float) -> tuple[float, float, int]:
    """Give the begin of the first step, the end, and the length of a step, all in seconds.

    Raises: InvalidRequestError: the time is none, or has too many steps.
    """
    since, until = query.bounds(now)
    if since < 0:
        raise InvalidRequestError(f"since: got {iso_time(since)}, wanted a time since 1970", param="since")
    step = query.step or min(_DAY_SECONDS, ceil((until - since) / _USUAL_POINTS / MINUTE_SECONDS) * MINUTE_SECONDS)
    begin = since - since % step  # steps are whole, so that the first is as high as the others
    num_points = ceil((until - begin) / step)
    if num_points > MAX_POINTS:
        wanted = f"a longer one or a shorter time: these are {num_points} points of at most {MAX_POINTS}"
        raise InvalidRequestError(f"step: got {step}, wanted {wanted}", param="step")
    return begin, until, step


def _point(at: int, sums: Iterable[MinuteSum]) -> Json:
    values: dict[str, int] = {}
    buckets: dict[str, dict[str, float]] = {HIT: {}, MISS: {}}
    for _, name, label, value in sums:
        if name == _FIRST_TOKENS:
            cache, _, bucket = label.partition(":")
            buckets[cache][bucket] = value
        else:
            values[name] = round(value)
    return {
        "at": iso_time(at),
        **{name: values.get(name, 0) for name in _COUNTS},
        **{name: values.get(name) for name in _TOKENS},
        "first_token_seconds": {cache: summary(counts_by_bucket(counts)) for cache, counts in buckets.items()},
    }
