"""Orders to a real worker process over the seam, with the chain runner in place of a model."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable

import numpy as np
import pytest

from engine.config import CacheConfig, EngineConfig
from gateway.backends.base import BackendFailedError, BackendUnavailableError, RequestRejectedError, Sampling
from gateway.backends.control import CacheOptions, HashedPrompt, PinOutcome, WarmUp
from gateway.backends.local import LocalBackend
from gateway.prefix import PrefixHasher
from prefixcache.interface import Reason
from tests.gateway.test_local_backend import QUICK, restarted
from tests.support.chain_worker import COMMAND

NUM_BLOCKS = 128
PROMPT = list(range(1, 65))


@pytest.fixture
async def backend() -> AsyncIterator[LocalBackend]:
    config = EngineConfig(model_path="chain", cache=CacheConfig(block_size=8, num_blocks=NUM_BLOCKS))
    backend = LocalBackend(config, supervision=QUICK, command=COMMAND)
    await backend.start()
    assert await backend.wait_settled() == "ready"
    yield backend
    await backend.stop()


class OnlyIdentity:
    tenant = "t"
    scope = "tenant:t"


def prompt_of(backend: LocalBackend, token_ids: list[int]) -> HashedPrompt:
    ids = np.asarray(token_ids, dtype=np.int32)
    return PrefixHasher().prompt(ids, identity=OnlyIdentity(), model=backend.model_info())  # type: ignore[arg-type]


async def generate(backend: LocalBackend, request_id: str, token_ids: list[int], *, max_tokens: int = 4):
    ids = np.asarray(token_ids, dtype=np.int32)
    request = PrefixHasher().request(
        request_id,
        ids,
        Sampling(max_tokens=max_tokens),
        identity=OnlyIdentity(),  # type: ignore[arg-type]
        model=backend.model_info(),
    )
    return await backend.generate(request)


async def ended(generation) -> None:
    async for _ in generation:
        pass


ORDERS: dict[str, Callable] = {
    "warm": lambda backend, prompt: backend.warm(prompt),
    "pin": lambda backend, prompt: backend.pin("p", prompt),
    "unpin": lambda backend, prompt: backend.unpin("p"),
    "prioritize": lambda backend, prompt: backend.prioritize("p", prompt, level=1),
    "end_priority": lambda backend, prompt: backend.end_priority("p"),
    "set_cache_options": lambda backend, prompt: backend.set_cache_options(),
    "blocks_of": lambda backend, prompt: backend.blocks_of("x"),
    "explain": lambda backend, prompt: backend.explain(prompt),
    "explain_request": lambda backend, prompt: backend.explain_request("x"),
}


async def test_warm_prompt_is_hit_by_the_first_request_and_counted_nowhere(backend: LocalBackend) -> None:
    assert await backend.warm(prompt_of(backend, PROMPT)) == WarmUp(64, None)
    snapshot = await backend.snapshot()
    assert (snapshot.counters["prompt_tokens"], snapshot.counters["cached_tokens"]) == (0, 0)
    generation = await generate(backend, "a", [*PROMPT, 9])
    assert generation.admission.num_cached_tokens == 64
    too_long = await backend.warm(prompt_of(backend, [1] * 5000))
    assert too_long == WarmUp(0, "too_long")


async def test_pin_tells_the_numbers_and_lowers_the_limit_while_it_lasts(backend: LocalBackend) -> None:
    prompt = prompt_of(backend, PROMPT)
    assert (await backend.pin("p", prompt)).refusal == "not_cached"
    await backend.warm(prompt)
    assert await backend.pin("p", prompt) == PinOutcome(None, 8, 8, 32, 8, 64)
    assert backend.model_info().max_model_len == (NUM_BLOCKS - 8) * 8
    large = prompt_of(backend, [5] * 8 * 25)
    await backend.warm(large)
    assert await backend.pin("q", large) == PinOutcome("max_pinned_ratio", 25, 8, 32, 8, 64)
    assert [await backend.unpin("p"), await backend.unpin("p"), await backend.unpin("q")] == [True, False, False]
    assert backend.model_info().max_model_len == NUM_BLOCKS * 8


async def test_priority_covers_what_is_cached_and_is_ended_once(backend: LocalBackend) -> None:
    prompt = prompt_of(backend, [*PROMPT, *range(100, 200)])
    await backend.warm(prompt_of(backend, PROMPT))
    assert await backend.prioritize("p", prompt, level=3, seconds=600) == 8
    assert [await backend.end_priority("p"), await backend.end_priority("p")] == [True, False]
    with pytest.raises(RequestRejectedError, match="at least 1") as error:
        await backend.prioritize("p", prompt, level=0)
    assert error.value.param == "level"


async def test_options_change_one_by_one_and_bad_ones_are_refused(backend: LocalBackend) -> None:
    assert await backend.set_cache_options() == CacheOptions(0.5, 256)
    assert await backend.set_cache_options(max_shared_ratio=0.75) == CacheOptions(0.75, 256)
    assert await backend.set_cache_options(growth_reserve=0) == CacheOptions(0.75, 0)
    with pytest.raises(RequestRejectedError, match="wanted 0 to 1"):
        await backend.set_cache_options(max_shared_ratio=2.0)


async def test_options_outlive_the_worker(backend: LocalBackend) -> None:
    await backend.set_cache_options(max_shared_ratio=0.125, growth_reserve=7)
    os.kill(backend.worker_process_id, signal.SIGKILL)
    async with asyncio.timeout(20):
        await restarted(backend)
        assert await backend.set_cache_options() == CacheOptions(0.125, 7)
        assert (await backend.snapshot()).blocks["pinned_blocks_limit"] == NUM_BLOCKS // 8
        assert await backend.set_cache_options(max_shared_ratio=0.5) == CacheOptions(0.5, 7)
        os.kill(backend.worker_process_id, signal.SIGKILL)
        await restarted(backend, 2)
        assert (await backend.snapshot()).blocks["pinned_blocks_limit"] == NUM_BLOCKS // 4


async def test_blocks_of_two_requests_with_a_common_prefix_are_the_same(backend: LocalBackend) -> None:
    await backend.warm(prompt_of(backend, PROMPT))
    one = await generate(backend, "one", [*PROMPT, 7, 7], max_tokens=300)
    two = await generate(backend, "two", [*PROMPT, 8, 8], max_tokens=300)
    views = [await backend.blocks_of(name) for name in ("one", "two")]
    for view, generation in zip(views, (one, two), strict=True):
        assert view.status == "running"
        reasons = [block.reason for block in view.blocks if block.reason is not None]
        assert reasons[:8] == ["hit"] * 8
        assert {reason: reasons.count(reason) for reason in reasons} == view.reasons == generation.admission.reasons
        assert sum(block.num_tokens for block in view.blocks[:8]) == generation.admission.num_cached_tokens
        assert [block.ref_count for block in view.blocks[:8]] == [2] * 8
    first, second = ([block.block_id for block in view.blocks] for view in views)
    assert first[:8] == second[:8]
    assert not set(first[8:]) & set(second[8:])
    one.abort()
    view = await backend.blocks_of("one")
    assert view.status == "ended"
    assert [block.block_id for block in view.blocks[:8]] == first[:8]
    await ended(two)
    assert (await backend.blocks_of("two")).status == "ended"
    assert await backend.blocks_of("nobody") is None


async def test_explain_of_what_is_cached_and_what_is_not(backend: LocalBackend) -> None:
    await backend.warm(prompt_of(backend, PROMPT))
    assert (await backend.explain(prompt_of(backend, PROMPT[:57]))).reason is Reason.HIT
    edited = await backend.explain(prompt_of(backend, [*PROMPT[:40], 999, *PROMPT[41:]]))
    assert (edited.num_cached_tokens, edited.diverging_token, edited.reason) == (40, 40, Reason.DIVERGED)


async def test_request_is_explained_by_what_was_cached_when_it_came(backend: LocalBackend) -> None:
    edited = [*PROMPT[:40], 999, *PROMPT[41:]]
    await ended(await generate(backend, "one", PROMPT))
    await ended(await generate(backend, "two", edited))
    await ended(await generate(backend, "three", edited))
    explained = await backend.explain_request("two")
    assert explained is not None
    explanation = explained.explanation
    assert (explanation.reason, explanation.diverging_token, explanation.block) == (Reason.DIVERGED, 40, 5)
    assert np.frombuffer(explanation.prompt_ahead, np.int32).tolist() == edited[40:64]
    assert np.frombuffer(explanation.cached_ahead, np.int32)[:24].tolist() == PROMPT[40:64]
    assert explained.nearest_request_id == "one"
    assert (await backend.explain_request("three")).nearest_request_id == "two"
    assert (await backend.explain_request("one")).nearest_request_id is None
    assert await backend.explain_request("nobody") is None


async def test_prompt_that_the_worker_had_before_its_restart_is_a_cold_restart(backend: LocalBackend) -> None:
    await ended(await generate(backend, "one", PROMPT))
    os.kill(backend.worker_process_id, signal.SIGKILL)
    async with asyncio.timeout(20):
        await restarted(backend)
    again = await generate(backend, "two", [*PROMPT[:44], *range(200, 220)])
    assert again.admission.reasons == {"cold_restart": 5, "never_cached": 3}
    await ended(again)
    third = await generate(backend, "three", PROMPT)
    assert third.admission.reasons == {"hit": 5, "cold_restart": 3}
    assert (await backend.explain_request("three")).explanation.reason is Reason.COLD_RESTART
    assert await backend.explain_request("one") is None


@pytest.mark.parametrize("name", ORDERS)
async def test_order_without_a_worker_is_unavailable(backend: LocalBackend, name: str) -> None:
    prompt = prompt_of(backend, PROMPT)
    await backend.stop()
    with pytest.raises(BackendUnavailableError):
        await ORDERS[name](backend, prompt)


@pytest.mark.parametrize("name", ["warm", "pin", "explain"])
async def test_worker_that_dies_while_an_order_waits_fails_it_and_takes_orders_again(
    backend: LocalBackend, name: str
) -> None:
    prompt = prompt_of(backend, PROMPT)
    os.kill(backend.worker_process_id, signal.SIGSTOP)
    waiting = asyncio.create_task(ORDERS[name](backend, prompt))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    os.kill(backend.worker_process_id, signal.SIGKILL)
    with pytest.raises(BackendFailedError):
        await waiting
    async with asyncio.timeout(20):
        await restarted(backend)
        assert await backend.warm(prompt_of(backend, PROMPT)) == WarmUp(64, None)
    assert await backend.blocks_of("x") is None


async def test_worker_that_does_not_answer_in_time_is_unavailable(
    backend: LocalBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.backends.local.orders.CALL_SECONDS", 0.1)
    prompt = prompt_of(backend, PROMPT)
    os.kill(backend.worker_process_id, signal.SIGSTOP)
    with pytest.raises(BackendUnavailableError, match=r"within 0\.1 s"):
        await backend.pin("p", prompt)
    os.kill(backend.worker_process_id, signal.SIGCONT)
    assert (await backend.explain(prompt)).num_cached_tokens == 0


async def test_warm_up_that_nobody_waits_for_any_more_stops(backend: LocalBackend) -> None:
    warm_ups = [
        asyncio.create_task(backend.warm(prompt_of(backend, [i + 1] * 1000))) for i in range(400)
    ]  # each evicts the one before
    while (await backend.snapshot()).counters["steps"] == 0:
        await asyncio.sleep(0.001)
    for warm_up in warm_ups:
        warm_up.cancel()
    await asyncio.gather(*warm_ups, return_exceptions=True)
    before = (await backend.snapshot()).counters["steps"]
    await asyncio.sleep(0.1)
    assert (await backend.snapshot()).counters["steps"] == before < 800
