"""What a page of the dashboard costs the gateway: CPU time for every route that one reads.

    python -m benchmarks.dashboard

A SQLite file gets 100,000 logged requests, spread over the last 24 hours, and 40 or so sums for each of their minutes; then
each route of `PATHS` is asked several times, in one process with its asker. What counts is the CPU time of all threads,
the database's among them. Status 1: one took longer than wanted.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import random
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import httpx

from benchmarks.machine import describe
from gateway.app import create_app
from gateway.request_entry import RequestEntry
from gateway.settings import Settings
from gateway.storage.store import Store, open_store, prepare_database
from tests.gateway.support.fake_backend import FakeBackend
from tests.gateway.support.tiny_model import write_model

WANTED_MS = 300.0
NUM_REQUESTS, NUM_TENANTS, SECONDS = 100_000, 50, 86400
ADMIN_KEY = "open-sesame"
PATHS = (
    "/overview",
    "/series",
    "/series?step=60",
    "/losses",
    "/history",
    "/requests",
    "/requests?status=503",
    "/requests?tenant=tenant-7",
    "/requests?tenant=tenant-7&status=503",
    "/requests?min_total_seconds=1000",
    "/requests?since={day}&until={later}",
    "/requests?since={noon}&until={later}",
    "/requests?model=none",
    "/requests/req-50000",
    "/usage/prompts",
    "/prompts",
    "/tenants",
    "/usage/tenants",
    "/rules",
    "/savings",
    "/config",
    "/cache",
)
"""Under `/admin/v1`. What a new page reads is added here."""
_LOST = [
    f"{reason}:{region}" for reason in ("evicted", "diverged", "share_cap") for region in ("system", "user", "tools")
]


async def fill(store: Store, client: httpx.AsyncClient, now: float) -> None:
    """Log requests, as a gateway does."""
    draw = random.Random(0)
    tenants = [
        (await client.post("/tenants", json={"name": f"tenant-{number}"})).json()["id"] for number in range(NUM_TENANTS)
    ]
    for number in range(NUM_REQUESTS):
        num_prompt = draw.randrange(50, 4000)
        is_refused = draw.random() < 0.02
        store.log.record(
            RequestEntry(
                f"req-{number}",
                "/v1/chat/completions",
                draw.choice(tenants),
                None,
                created_at=now - SECONDS + number * SECONDS / NUM_REQUESTS,
                completion_id=f"chatcmpl-{number}",
                model="tiny",
                status=503 if is_refused else 200,
                error="engine_overloaded" if is_refused else None,
                finish_reason="stop",
                prepare_seconds=0.002,
                queue_seconds=0.01,
                first_token_seconds=draw.lognormvariate(-1.0, 1.5),
                total_seconds=draw.lognormvariate(0.5, 1.0),
                num_prompt_tokens=num_prompt,
                num_cached_tokens=draw.randrange(num_prompt),
                num_output_tokens=draw.randrange(400),
                reasons={"hit": 40, "diverged": 3, "never_cached": 9},
                rules=["canonical_json", "strip_client_header"],
            )
        )
        if number % 5000 == 0:
            await store.log.flush()
    for minute in range(SECONDS // 60):
        for name in ("sampled_prompt_tokens", "sampled_cached_tokens", "possible_tokens"):
            store.minutes.add({(name, ""): 1000}, at=now - 60 * minute)
        for label in _LOST:
            store.minutes.add({("lost_tokens", label): 10}, at=now - 60 * minute)
    await store.log.flush()


@asynccontextmanager
async def gateway(folder: Path) -> AsyncIterator[tuple[Store, httpx.AsyncClient]]:
    """Start one on a new file, with an operator who is logged in."""
    settings = Settings(db=f"sqlite+aiosqlite:///{folder}/x.db", admin_key=ADMIN_KEY)
    await prepare_database(settings)
    store = open_store(settings)
    model = folder / "model"
    model.mkdir()
    app = create_app(settings, FakeBackend(), write_model(model), store=store)
    base = "http://gateway/admin/v1"
    headers = {"authorization": f"Bearer {ADMIN_KEY}"}
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=base, headers=headers) as client,
    ):
        yield store, client


async def cost(client: httpx.AsyncClient, path: str, num_rounds: int) -> tuple[float, int]:
    """Give the CPU time of one answer in milliseconds, the median of several, and its bytes."""
    times = []
    for _ in range(num_rounds):
        began = time.process_time()
        answer = await client.get(path)
        times.append((time.process_time() - began) * 1000)
        answer.raise_for_status()
    return statistics.median(times), len(answer.content)


async def run(folder: Path, num_rounds: int) -> int:
    """Print the table; give the exit status."""
    now = time.time()
    slow = 0
    async with gateway(folder) as (store, client):
        await fill(store, client, now)
        gc.collect()
        gc.freeze()  # as `serve` does
        print(f"{NUM_REQUESTS} requests; CPU ms, wanted at most {WANTED_MS:.0f}")
        for path in PATHS:
            milliseconds, num_bytes = await cost(
                client, path.format(day=now - SECONDS, noon=now - SECONDS / 2, later=now), num_rounds
            )
            slow += milliseconds > WANTED_MS
            print(f"{milliseconds:8.1f} ms  {num_bytes / 1000:8.1f} kB  {path}", flush=True)
    return int(slow > 0)


def main(argv: Sequence[str] | None = None) -> int:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="answers a route (default: 5)")
    args = parser.parse_args(argv)
    print(describe())
    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(run(Path(folder), args.rounds))


if __name__ == "__main__":
    sys.exit(main())
