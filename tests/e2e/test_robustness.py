"""Clients that leave and a worker that dies, on the real model."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import time

import httpx
import pytest

from tests.support.server import Server

pytestmark = pytest.mark.model

MODEL = "smollm2-135m-instruct"


def body(number: int, max_tokens: int) -> dict:
    system = "You are a helpful assistant of a parcel service. " * 8
    return {
        "model": MODEL,
        "stream": True,
        "temperature": 0,
        "max_tokens": max_tokens,
        "ignore_eos": True,
        "stream_options": {"include_usage": True},
        "messages": [{"role": "system", "content": system}, {"role": "user", "content": f"Question {number}?"}],
    }


def settled(server: Server) -> dict[str, int]:
    """The cache once nothing runs or waits."""
    deadline = time.monotonic() + 60
    while (cache := server.cache())["num_running"] + cache["num_waiting"]:
        assert time.monotonic() < deadline, f"requests were left behind: {cache}"
        time.sleep(0.1)
    return cache


async def test_32_clients_that_leave_or_stay_leak_no_block_and_get_one_answer_each(server: Server) -> None:
    rng = random.Random(4)
    max_tokens = 24

    async def run(client: httpx.AsyncClient, number: int, leave_after: int | None) -> tuple[str, int]:
        ids, tokens = set(), 0
        async with client.stream("POST", f"{server.url}/v1/chat/completions", json=body(number, max_tokens)) as answer:
            assert answer.status_code == 200
            if leave_after == 0:
                return "left", 0
            async for line in answer.aiter_lines():
                if line == "data: [DONE]":
                    assert len(ids) == 1
                    return "done", tokens
                if not line.startswith("data: "):
                    continue
                event = json.loads(line[6:])
                ids.add(event["id"])
                tokens = (event.get("usage") or {}).get("completion_tokens", tokens)
                if leave_after is not None and rng.random() < 1 / leave_after:
                    return "left", 0
        raise AssertionError("the stream ended without [DONE]")

    async with httpx.AsyncClient(timeout=300, limits=httpx.Limits(max_connections=64)) as client:
        plans = [rng.choice([None, 0, 3, 8]) for _ in range(32)]
        outcomes = await asyncio.gather(*(run(client, number, plan) for number, plan in enumerate(plans)))
    assert {outcome for outcome, _ in outcomes} == {"done", "left"}
    assert all(tokens == max_tokens for outcome, tokens in outcomes if outcome == "done")
    assert all(outcome == "done" for (outcome, _), plan in zip(outcomes, plans, strict=True) if plan is None)
    cache = await asyncio.to_thread(settled, server)
    assert cache["free_blocks"] + cache["cached_blocks"] == cache["total_blocks"]
    assert cache["active_blocks"] == 0


async def test_worker_killed_during_8_streams_each_gets_a_clean_error_and_service_returns(server: Server) -> None:
    started = asyncio.Event()

    async def run(client: httpx.AsyncClient, number: int) -> str:
        async with client.stream("POST", f"{server.url}/v1/chat/completions", json=body(number, 400)) as answer:
            if answer.status_code == 503:
                assert int(answer.headers["retry-after"]) > 0
                return "503"
            error = None
            async for line in answer.aiter_lines():
                assert line != "data: [DONE]"
                if line.startswith("data: "):
                    started.set()
                    assert error is None, "an event after the error"
                    error = json.loads(line[6:]).get("error")
            assert error is not None, "the stream just ended"
            assert error["message"]
            return "error event"

    (worker_id,) = server.worker_ids()
    gateway_id = server.process.pid
    async with httpx.AsyncClient(timeout=120) as client:
        clients = [asyncio.create_task(run(client, number)) for number in range(8)]
        await asyncio.wait_for(started.wait(), 60)
        os.kill(worker_id, signal.SIGKILL)
        outcomes = await asyncio.wait_for(asyncio.gather(*clients), 60)
        assert "error event" in outcomes
        assert set(outcomes) <= {"error event", "503"}
        health = await client.get(f"{server.url}/health")
        assert health.status_code == 200
        await asyncio.to_thread(server.wait_ready, 60)
        again = body(1, 4) | {"stream": False, "stream_options": None}
        answer = await client.post(f"{server.url}/v1/chat/completions", json=again)
    assert server.process.pid == gateway_id
    assert server.process.poll() is None
    assert server.worker_ids() != [worker_id]
    assert answer.json()["usage"]["completion_tokens"] == 4
