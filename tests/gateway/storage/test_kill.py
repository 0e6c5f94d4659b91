"""What a gateway that is killed in the middle of its work leaves in the database."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time

import httpx
import pytest
from sqlalchemy import select

from gateway.model_files import ModelFiles
from gateway.storage import migrate
from gateway.storage.database import Database
from gateway.storage.pepper import Pepper
from gateway.storage.store import Store
from gateway.storage.tables import REQUEST_HOURS, REQUESTS, TENANTS
from tests.gateway.support.stored_gateway import ADMIN
from tests.gateway.test_serve import COMMAND

PEPPER = "a pepper of some length"
CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}


def start(files: ModelFiles, url: str) -> tuple[subprocess.Popen[str], str]:
    """A gateway, and where it listens."""
    environment = os.environ | {
        "PREFIXGATE_DB": url,
        "PREFIXGATE_PEPPER": PEPPER,
        "PREFIXGATE_ADMIN_KEY": "open-sesame",
    }
    command = [*COMMAND, str(files.folder), "ready"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    assert process.stdout is not None
    said = process.stdout.readline()
    if "serves tiny on" not in said:
        raise RuntimeError(process.communicate()[1])
    return process, said.split()[-1]


def write_load(process: subprocess.Popen[str], address: str, seconds: float) -> tuple[dict[str, str], int, float]:
    """Chats and admin writes at the same time, then SIGKILL. Keys that were answered, chats that were, rows said to be written."""
    keys: dict[str, str] = {}
    answered = 0
    ends_at = time.monotonic() + seconds

    def make_keys() -> None:
        with httpx.Client(base_url=address, timeout=10, headers=ADMIN) as admin:
            for number in range(100_000):
                try:
                    name = admin.post("/admin/v1/tenants", json={"name": f"t{number}"}).json()["id"]
                    keys[name] = admin.post("/admin/v1/keys", json={"tenant": name}).json()["key"]
                except httpx.TransportError:
                    return

    maker = threading.Thread(target=make_keys)
    with httpx.Client(base_url=address, timeout=10) as client:
        first = client.post("/admin/v1/keys", json={"tenant": "default"}, headers=ADMIN).json()["key"]
        keys["default"] = first
        maker.start()
        while time.monotonic() < ends_at:
            headers = {"authorization": f"Bearer {first}", "x-request-id": f"n{answered}"}
            assert client.post("/v1/chat/completions", json=CHAT, headers=headers).status_code == 200
            answered += 1
        lines = client.get("/metrics").text.splitlines()
        process.send_signal(signal.SIGKILL)
    maker.join()
    written = next(
        float(line.split()[-1]) for line in lines if line.startswith("prefixgate_request_log_written_rows_t")
    )
    return keys, answered, written


async def left_behind(url: str) -> tuple[Store, list[str], int, set[str]]:
    """The store with its keys, the ids of the logged requests in order, their hourly sum, and the tenants."""
    database = Database(url)
    store = Store(database, Pepper(PEPPER))
    await store.ring.refresh()
    async with database.read() as connection:
        ids = (await connection.execute(select(REQUESTS.c.request_id).order_by(REQUESTS.c.seq))).scalars().all()
        summed = (await connection.execute(select(REQUEST_HOURS.c.num_requests))).scalars().all()
        minutes = await store.minutes.sums(0, time.time(), names=["requests"])
        assert sum(requests.value for requests in minutes) == sum(summed)
        tenants = (await connection.execute(select(TENANTS.c.id))).scalars().all()
    await database.close()
    return store, list(ids), sum(summed), set(tenants)


def test_killed_gateway_loses_its_last_batch_of_log_rows_and_no_key(model_files: ModelFiles, url: str) -> None:
    async def upgrade() -> None:
        database = Database(url)
        await migrate.upgrade(database)
        await database.close()

    asyncio.run(upgrade())
    process, address = start(model_files, url)
    try:
        keys, answered, written = write_load(process, address, 2.0)
        assert process.wait(10) == -signal.SIGKILL
        store, ids, summed, tenants = asyncio.run(left_behind(url))
        assert len(keys) > 3
        assert keys.keys() <= tenants
        for tenant, key in keys.items():
            found = store.ring.identify(key)
            assert found is not None
            assert found.tenant == tenant
        assert 0 < written <= len(ids) <= answered
        assert ids == [f"n{number}" for number in range(len(ids))]  # what is lost is the end, in one piece
        assert summed == len(ids)
    finally:
        process.kill()
        process.communicate()
    process, address = start(model_files, url)  # and it starts again as if nothing had been
    try:
        headers = {"authorization": f"Bearer {keys['default']}"}
        assert httpx.post(f"{address}/v1/chat/completions", json=CHAT, headers=headers).status_code == 200
        process.send_signal(signal.SIGTERM)
        _, log = process.communicate(timeout=20)
        assert "API keys exist: /v1 needs one." in log
    finally:
        process.kill()
        process.communicate()
    assert asyncio.run(left_behind(url))[1][len(ids) :] != []  # an orderly end writes what waits


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({"PREFIXGATE_PEPPER": ""}, "PREFIXGATE_PEPPER is missing"),
        (
            {"PREFIXGATE_DB": "postgresql+psycopg://u:hush@127.0.0.1:1/x"},
            "the database cannot be used: (psycopg.OperationalError) connection",
        ),
        ({}, "run `prefixgate db upgrade`"),
    ],
    ids=["no-pepper", "unreachable", "not-upgraded"],
)
@pytest.mark.parametrize("url", ["postgresql"], indirect=True)
def test_serve_refuses_postgresql_that_is_not_ready(
    model_files: ModelFiles, url: str, environment: dict[str, str], words: str
) -> None:
    if environment.get("PREFIXGATE_PEPPER") == "":
        asyncio.run(_upgraded(url))
    ended = subprocess.run(
        [sys.executable, "-m", "gateway", "serve", str(model_files.folder)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "PREFIXGATE_DB": url, "PREFIXGATE_PEPPER": PEPPER, **environment},
    )
    assert (ended.returncode, ended.stdout) == (1, "")
    assert words in ended.stderr
    assert "Traceback" not in ended.stderr
    assert "hush" not in ended.stderr


async def _upgraded(url: str) -> None:
    database = Database(url)
    await migrate.upgrade(database)
    await database.close()
