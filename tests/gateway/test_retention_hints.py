"""`cache_control`: what is marked is evicted later, within bounds, and nothing else changes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.config import CacheConfig, EngineConfig
from gateway.app import create_app
from gateway.auth import Identity
from gateway.backends.control import HashedPrompt
from gateway.backends.local import LocalBackend
from gateway.model_files import ModelFiles
from gateway.prefix import PrefixHasher
from gateway.retention_hints import MAX_SHARE, RetainedPrompt, RetentionHints
from gateway.settings import Settings
from tests.gateway.support.fake_backend import FakeBackend
from tests.gateway.support.fake_control import BLOCK_SIZE, TOTAL_BLOCKS, keys_of
from tests.support.chain_worker import COMMAND

PATH = "/v1/messages"
MARK = {"type": "ephemeral"}
HOUR = {"type": "ephemeral", "ttl": "1h"}


def text(content: str, mark: Any = None) -> dict[str, Any]:
    return {"type": "text", "text": content, **({"cache_control": mark} if mark else {})}


def message(*turns: Any, system: Any = "You are kind and brief, and never wrong.", **fields: Any) -> dict[str, Any]:
    messages = [{"role": ("user", "assistant")[number % 2], "content": turn} for number, turn in enumerate(turns)]
    return {"model": "tiny", "max_tokens": 4, "system": system, "messages": messages, **fields}


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


@pytest.fixture
async def small_engine(model_files: ModelFiles) -> AsyncIterator[httpx.AsyncClient]:
    """A real worker without a model, and with little memory."""
    config = EngineConfig(model_path="chain", cache=CacheConfig(block_size=8, num_blocks=64, growth_reserve=0))
    backend = LocalBackend(config, command=COMMAND)
    app = create_app(Settings(), backend, model_files)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway", timeout=60) as client,
    ):
        assert await backend.wait_settled() == "ready"
        yield client


@pytest.mark.parametrize("mark", [MARK, None])
async def test_what_is_marked_outlives_traffic_that_is_not(small_engine: httpx.AsyncClient, mark: Any) -> None:
    async def cached(body: dict[str, Any]) -> int:
        answer = await small_engine.post(PATH, json=body)
        assert answer.status_code == 200, answer.text
        return int(answer.json()["usage"]["cache_read_input_tokens"])

    kept = message([text("What is there?", mark)])
    assert await cached(kept) == 0
    for number in range(12):
        await cached(message(f"{number} " * 30, system=f"{number} is my number."))
    assert (await cached(kept) > 0) is (mark is not None)


@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        (message("hi"), []),
        (message([text("hi", MARK)]), [(300.0, False)]),
        (message([text("hi", HOUR)], system=[text("You are kind.", MARK)]), [(3600.0, False)]),
        (message([text("hi", MARK)], system=[text("You are kind.", HOUR)]), [(300.0, False), (3600.0, True)]),
        (message("hi", system=[text("You are kind and brief. " * 3, MARK)]), [(300.0, True)]),
        (message("hi", cache_control=HOUR), [(3600.0, False)]),
        (
            message("hi", [text("Yes")], [{"type": "tool_result", "tool_use_id": "1", "content": [text("4", MARK)]}]),
            [(300.0, False)],
        ),
    ],
)
async def test_marks_say_how_much_and_how_long(
    client: httpx.AsyncClient, backend: FakeBackend, body: dict[str, Any], wanted: list[tuple[float, bool]]
) -> None:
    assert (await client.post(PATH, json=body)).status_code == 200
    await settle()
    prompt = backend.requests[0]
    got = []
    for handle, (level, seconds) in backend.priorities.items():
        covered = keys_of(backend.prioritized[handle])
        assert level == 1
        assert covered == keys_of(prompt)[: len(covered)]
        got.append((seconds, len(covered) < len(keys_of(prompt))))
    assert got == wanted


async def test_conversation_that_goes_on_has_one_hint(client: httpx.AsyncClient, backend: FakeBackend) -> None:
    await client.post(PATH, json=message([text("What is there, and why?", MARK)]))
    await settle()
    await client.post(PATH, json=message("What is there, and why?", "All.", [text("And?", MARK)]))
    await settle()
    assert len(backend.priorities) == 1
    (covered,) = backend.prioritized.values()
    assert keys_of(covered) == keys_of(backend.requests[1])


async def test_hint_for_longer_is_not_cut_short_by_another(client: httpx.AsyncClient, backend: FakeBackend) -> None:
    head = "You are kind and brief. " * 3
    for body in (message("hi", system=[text(head, HOUR)]), message([text("hi", MARK)], system=head)):
        await client.post(PATH, json=body)
        await settle()
    assert sorted(seconds for _, seconds in backend.priorities.values()) == [300.0, 3600.0]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (message([text("hi", "ephemeral")]), "messages[0].content[0].cache_control"),
        (message("hi", system=[text("x", {"type": "ephemeral", "ttl": "2h"})]), "system[0].cache_control.ttl"),
        (message("hi", cache_control={"type": "ephemeral", "ttl": 5}), "cache_control.ttl"),
    ],
)
async def test_marks_that_are_none_are_named(client: httpx.AsyncClient, body: dict[str, Any], field: str) -> None:
    answer = await client.post(PATH, json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["message"].startswith(f"{field}: ")


def prompt_of(backend: FakeBackend, number: int, num_blocks: int) -> HashedPrompt:
    """Prompts with the same number begin alike."""
    ids = np.arange(num_blocks * BLOCK_SIZE, dtype=np.int32) + number * 10_000
    return PrefixHasher().prompt(ids, identity=Identity("t"), model=backend.model_info())


@given(
    orders=st.lists(
        st.tuples(
            st.integers(0, 5),
            st.integers(0, 120) | st.just(TOTAL_BLOCKS),
            st.sampled_from([10.0, 300.0]),
            st.integers(0, 200),
        ),
        max_size=20,
    )
)
async def test_hints_cover_a_bounded_part_and_the_newest_is_in_force(
    orders: list[tuple[int, int, float, int]],
) -> None:
    backend, now = FakeBackend(), 0.0
    hints = RetentionHints(backend, lambda: now)
    expires_at: dict[str, float] = {}
    budget = int(TOTAL_BLOCKS * MAX_SHARE)
    for number, num_blocks, seconds, passed in orders:
        now += passed
        for handle in [handle for handle, end in expires_at.items() if end <= now]:  # as the engine does
            del expires_at[handle]
            await backend.end_priority(handle)
        before = dict(backend.prioritized)
        prompt = prompt_of(backend, number, num_blocks)
        hints.keep(RetainedPrompt(prompt, seconds))
        await settle()
        for handle, kept in backend.prioritized.items():
            if kept is not before.get(handle):
                expires_at[handle] = now + seconds
        covered = [keys_of(kept) for kept in backend.prioritized.values()]
        assert sum(map(len, covered)) <= budget
        assert not num_blocks or keys_of(prompt)[:budget] in covered


async def test_engine_that_was_restarted_is_told_anew(backend: FakeBackend) -> None:
    hints = RetentionHints(backend)
    hints.keep(RetainedPrompt(prompt_of(backend, 0, 200), 300))
    await settle()
    backend.forget()
    backend.hash_epoch += 1
    hints.keep(RetainedPrompt(prompt_of(backend, 1, 100), 300))
    await settle()
    assert len(backend.prioritized) == 1
    backend.is_up = False
    hints.keep(RetainedPrompt(prompt_of(FakeBackend(), 2, 1), 300))
    await settle()
    assert len(backend.prioritized) == 1
