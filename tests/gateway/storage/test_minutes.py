"""Sums by the minute: nothing is lost or counted twice, whoever writes, and whatever fails meanwhile."""

from __future__ import annotations

import asyncio
import math
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from gateway.errors import StorageUnavailableError
from gateway.request_entry import RequestEntry
from gateway.storage.database import Database
from gateway.storage.minutes import MAX_LABELS, Minutes, MinuteSum
from gateway.storage.request_log import RequestLog
from gateway.storage.retention import DEFAULT_RETENTION, MINUTES_DAYS, prune

START = 1_000_020  # a full minute
DAY = 86400.0


def entry(second: float = 0.0, **fields: Any) -> RequestEntry:
    made = RequestEntry("req", "/v1/chat/completions", "default", None, created_at=START + second)
    known = {
        "status": 200,
        "num_prompt_tokens": 10,
        "num_cached_tokens": 5,
        "num_output_tokens": 3,
        "saved_seconds": 0.25,
    }
    for name, value in {**known, "first_token_seconds": 0.5, **fields}.items():
        setattr(made, name, value)
    return made


@pytest.fixture
def quick_switches() -> Iterator[None]:
    """Threads take turns so often that what is not locked goes wrong."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


async def all_of(minutes: Minutes, step: int | None = None) -> Sequence[MinuteSum]:
    return await minutes.sums(0, START + 10 * DAY, step)


async def test_requests_are_summed_by_the_minute_that_they_came_in(database: Database) -> None:
    log = RequestLog(database, DEFAULT_RETENTION)
    log.record(entry(0))
    log.record(entry(59.9, num_cached_tokens=4, first_token_seconds=99.0))
    log.record(
        entry(
            60,
            status=503,
            num_prompt_tokens=None,
            num_cached_tokens=None,
            num_output_tokens=None,
            saved_seconds=None,
            first_token_seconds=None,
        )
    )
    log.minutes.add({("lost_tokens", "evicted:system"): 7.0}, at=START + 61)
    await log.flush()
    assert await all_of(log.minutes, 60) == [
        (START, "cached_tokens", "", 9),
        (START, "first_tokens", "hit:0.6", 1),
        (START, "first_tokens", "miss:+Inf", 1),
        (START, "generated_tokens", "", 6),
        (START, "prompt_tokens", "", 20),
        (START, "requests", "", 2),
        (START, "saved_seconds", "", 0.5),
        (START + 60, "errors", "", 1),
        (START + 60, "lost_tokens", "evicted:system", 7),
        (START + 60, "requests", "", 1),
    ]


async def test_sums_are_asked_for_by_span_step_and_name(database: Database) -> None:
    log = RequestLog(database, DEFAULT_RETENTION)
    for minute in range(10):
        log.minutes.add({("possible_tokens", ""): 1}, at=START + 60 * minute)
        log.minutes.add({("lost_tokens", "evicted:user"): 2}, at=START + 60 * minute)
    await log.flush()
    found = await log.minutes.sums(START + 59, START + 300, 180, names=["possible_tokens"])
    begin = START - 120  # a multiple of the step
    assert [(sum_.at - begin, sum_.value) for sum_ in found] == [(0, 1), (180, 3), (360, 1)]
    assert await log.minutes.sums(START, START + 120) == [
        (START, "lost_tokens", "evicted:user", 4),
        (START, "possible_tokens", "", 2),
    ]


async def test_gateways_and_threads_add_up(database: Database, url: str, quick_switches: None) -> None:
    other = Database(url)
    logs = [RequestLog(each, DEFAULT_RETENTION) for each in (database, other)]
    labels = [f"reason:{number}" for number in range(7)]

    def add(minutes: Minutes) -> None:
        for number in range(7000):
            minutes.add({("lost_tokens", labels[number % 7]): 1}, at=START)

    with ThreadPoolExecutor(4) as pool:
        adding = [pool.submit(add, log.minutes) for log in logs for _ in range(2)]
        while not all(each.done() for each in adding):
            for log in logs:
                log.record(entry())
            await asyncio.gather(*(log.flush() for log in logs))
    await asyncio.gather(*(log.flush() for log in logs))
    sums = {label: value for _, name, label, value in await all_of(logs[0].minutes) if name == "lost_tokens"}
    assert sums == dict.fromkeys(labels, 4000)
    (requests,) = await logs[0].minutes.sums(0, START + DAY, names=["requests"])
    assert requests.value == sum(log.num_written for log in logs)
    await other.close()


async def test_refused_rows_add_nothing_and_the_others_once(database: Database) -> None:
    log = RequestLog(database, DEFAULT_RETENTION)
    for number in range(9):
        log.record(entry(number, **({"status": 1 << 70} if number in (2, 7) else {})))
    log.minutes.add({("possible_tokens", ""): 90}, at=START)
    await log.flush()
    sums = {name: value for _, name, _, value in await all_of(log.minutes)}
    assert (log.num_written, log.num_dropped) == (7, 2)
    assert (sums["requests"], sums["prompt_tokens"], sums["possible_tokens"]) == (7, 70, 90)
    assert "errors" not in sums


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
async def test_sums_wait_while_the_database_is_gone(database: Database) -> None:
    log = RequestLog(database, DEFAULT_RETENTION)
    file = Path(database.place)
    away = file.rename(file.with_name("away"))
    log.minutes.add({("possible_tokens", ""): 1}, at=START)
    for number in range(3):
        log.record(entry(number))
        log.minutes.add({("possible_tokens", ""): 1}, at=START + 60 * number)
        with pytest.raises(StorageUnavailableError):
            await log.flush()
    away.rename(file)
    assert log.minutes.num_waiting == 3
    await log.flush()
    assert log.minutes.num_waiting == 0
    sums = {name: value for _, name, _, value in await all_of(log.minutes)}
    assert (sums["requests"], sums["possible_tokens"]) == (3, 4)


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
async def test_what_waits_is_bounded_and_what_is_there_still_grows(database: Database) -> None:
    minutes = Minutes(database, max_waiting=2)
    for second in (0, 60, 120, 0, 180):
        minutes.add({("possible_tokens", ""): 1}, at=START + second)
    assert (minutes.num_waiting, minutes.num_dropped) == (2, 2)
    with minutes.taken() as taken:
        assert list(taken.values()) == [2, 1]


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
async def test_labels_beyond_their_number_and_such_as_nobody_stores_are_others(database: Database) -> None:
    log = RequestLog(database, DEFAULT_RETENTION)
    for label in ("x" * 65, "nul\0", "\ud800", *(f"a:{number}" for number in range(MAX_LABELS + 5)), "a:1"):
        log.minutes.add({("lost_tokens", label): 1}, at=START)
    log.minutes.add({("possible_tokens", "other:name"): 1}, at=START)
    await log.flush()
    sums = {label: value for _, name, label, value in await all_of(log.minutes)}
    assert (len(sums), sums["other"], sums["a:1"], sums["other:name"]) == (MAX_LABELS + 2, 8, 2, 1)
    for value in (math.nan, math.inf):
        with pytest.raises(ValueError, match="wanted a finite number"):
            log.minutes.add({("lost_tokens", ""): value})
    with pytest.raises(ValueError, match="got 'requests', wanted one of"):
        log.minutes.add({("requests", ""): 1})


async def test_minutes_are_pruned_an_hour_at_a_time(database: Database) -> None:
    log = RequestLog(database, DEFAULT_RETENTION)
    for minute in range(180):
        log.minutes.add({("possible_tokens", ""): 1}, at=START + 60 * minute)
    await log.flush()
    now = START + 150 * 60 + MINUTES_DAYS * DAY
    assert [await prune(database, DEFAULT_RETENTION, now) for _ in range(4)] == [True, True, False, False]
    (left,) = await all_of(log.minutes)
    assert left.value == 30
    assert await log.minutes.sums(0, START + 150 * 60) == []
