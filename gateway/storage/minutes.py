"""Sums by the minute, for some days: what a dashboard draws, also of the time before a restart.

What follows from a request is summed from its entry, in the transaction that writes its row. Everything else is added
in memory, by any thread, and written with the next rows; while the database is gone it waits, up to a bound.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from sqlalchemy import func, literal, select
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.context.report import ContextReport
from gateway.first_tokens import bucket_name
from gateway.normalize.rule import Mode
from gateway.request_entry import RequestEntry
from gateway.storage.adding import upsert_adding
from gateway.storage.database import Database
from gateway.storage.tables import METRIC_MINUTES

MINUTE_SECONDS = 60
MAX_LABELS = 200
"""Of one name; the rest are summed under `OTHER`."""
OTHER = "other"
_MAX_LABEL_CHARS = 64
_MAX_WAITING = 100_000
_FIRST_ERROR = 400

ADDED_SUMS = ("sampled_prompt_tokens", "sampled_cached_tokens", "possible_tokens", "lost_tokens")
"""Added by whoever knows. `lost_tokens` is labelled `reason:region`."""

Key = tuple[int, str, str]
"""The minute's first second, name, label."""
Sums = Mapping[Key, float]


class MinuteSum(NamedTuple):
    """A sum over some minutes, of which `at` is the first second."""

    at: int
    name: str
    label: str
    value: float


class Minutes:
    """The sums of one database.

    Attributes:
        num_dropped: additions that were lost because too many sums waited.

    Args:
        database: with our tables.
        clock: seconds since 1970.
        max_waiting: sums in memory.
    """

    def __init__(
        self, database: Database, clock: Callable[[], float] = time.time, *, max_waiting: int = _MAX_WAITING
    ) -> None:
        self.num_dropped = 0
        self._database = database
        self._clock = clock
        self._max_waiting = max_waiting
        self._lock = threading.Lock()
        self._waiting: dict[Key, float] = {}
        self._labels: dict[str, set[str]] = {}

    @property
    def num_waiting(self) -> int:
        """Sums that are not written yet."""
        return len(self._waiting)

    def add(self, sums: Mapping[tuple[str, str], float], at: float | None = None) -> None:
        """Add to sums, from any thread: in one minute and, like all that waits, in one transaction. Waits for nothing.

        Args:
            sums: by name, one of `ADDED_SUMS`, and label, empty where it has none; in the name's unit. What is added in
                one call belongs together: all of it is kept, or nothing.
            at: seconds since 1970; None: now.

        Raises: ValueError: there is no such sum, or a value is no finite number, from which a sum never recovers.
        """
        for (name, _), value in sums.items():
            if name not in ADDED_SUMS:
                raise ValueError(f"name: got {name!r}, wanted one of {', '.join(ADDED_SUMS)}")
            if not math.isfinite(value):
                raise ValueError(f"value of {name}: got {value}, wanted a finite number")
        minute = _minute(self._clock() if at is None else at)
        with self._lock:
            self._add([((minute, name, self._bounded(name, label)), value) for (name, label), value in sums.items()])

    @contextmanager
    def taken(self) -> Iterator[Sums]:
        """Hand over what waits, to be written inside; where that fails it waits on."""
        with self._lock:
            taken, self._waiting = self._waiting, {}
        try:
            yield taken
        except BaseException:
            with self._lock:
                for addition in taken.items():
                    self._add([addition])
            raise

    async def sums(
        self, since: float, until: float, step: int | None = None, *, names: Collection[str] | None = None
    ) -> Sequence[MinuteSum]:
        """Sum what is written, by steps of time, the oldest first. Only what there is: no sum is 0 for lack of data.

        Args:
            since: from the minute of it on; seconds since 1970.
            until: before it.
            step: seconds, a multiple of a minute; steps begin at multiples of it since 1970. None: one for all.
            names: which sums; None: all.

        Raises: StorageUnavailableError: the database does not answer.
        """
        minute, name, label, value = METRIC_MINUTES.columns
        begin = _minute(since)
        at = literal(begin) if step is None else minute - minute % step
        groups = ["name", "label"] if step is None else ["at", "name", "label"]
        query = (
            select(at.label("at"), name, label, func.sum(value))
            .where(minute >= begin, minute < until)
            .group_by(*groups)
            .order_by(*groups)
        )
        if names is not None:
            query = query.where(name.in_(sorted(names)))
        async with self._database.read() as connection:
            rows = (await connection.execute(query)).all()
        return [MinuteSum(*row) for row in rows]

    def _add(self, additions: Sequence[tuple[Key, float]]) -> None:
        num_new = len({key for key, _ in additions} - self._waiting.keys())
        if num_new and len(self._waiting) + num_new > self._max_waiting:
            self.num_dropped += 1
            return
        for key, value in additions:
            self._waiting[key] = self._waiting.get(key, 0.0) + value

    def _bounded(self, name: str, label: str) -> str:
        known = self._labels.setdefault(name, set())
        if label in known:
            return label
        is_storable = len(label) <= _MAX_LABEL_CHARS and label.isascii() and label.isprintable()
        if not is_storable or len(known) >= MAX_LABELS:
            return OTHER
        known.add(label)
        return label


async def add_to_minutes(connection: AsyncConnection, entries: Iterable[RequestEntry], added: Sums) -> None:
    """Add requests to the sums of the minutes that they came in, and what was added besides, inside a transaction."""
    sums = dict(added)
    for entry in entries:
        minute = _minute(entry.created_at)
        for name, label, value in _sums_of(entry):
            key = (minute, name, label)
            sums[key] = sums.get(key, 0.0) + value
    if sums:
        rows = [
            {"minute": minute, "name": name, "label": label, "value": value}
            for (minute, name, label), value in sorted(sums.items())
        ]
        await connection.execute(upsert_adding(connection, METRIC_MINUTES), rows)


def _sums_of(entry: RequestEntry) -> Iterator[tuple[str, str, float]]:
    """Tell what a request adds: what it has no number of is left out, for no data is not 0.

    `first_tokens` counts them, labelled `hit:0.6`: hit or miss, and the bound of the bucket.
    """
    yield "requests", "", 1
    if entry.status >= _FIRST_ERROR:
        yield "errors", "", 1
    if entry.num_prompt_tokens is not None:
        yield "prompt_tokens", "", entry.num_prompt_tokens
    if entry.num_cached_tokens is not None:
        yield "cached_tokens", "", entry.num_cached_tokens
    if entry.num_output_tokens is not None:
        yield "generated_tokens", "", entry.num_output_tokens
    if entry.saved_seconds is not None:
        yield "saved_seconds", "", entry.saved_seconds
    if entry.context is not None and entry.context.mode is Mode.ON:
        yield from _sums_of_context(entry.context)
    if entry.first_token_seconds is not None and entry.cache_label is not None:
        yield "first_tokens", f"{entry.cache_label}:{bucket_name(entry.first_token_seconds)}", 1


def _sums_of_context(report: ContextReport) -> Iterator[tuple[str, str, float]]:
    yield "context_requests", "", 1
    if report.edits:
        yield "context_edited_requests", "", 1
        yield "context_cleared_tokens", "", report.cleared_tokens
    if report.is_new_cut:
        yield "context_cuts", "", 1


def _minute(at: float) -> int:
    return int(at // MINUTE_SECONDS) * MINUTE_SECONDS
