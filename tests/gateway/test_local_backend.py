"""The supervised worker process, with the chain runner in place of a model."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import random
import signal
import sys
from collections.abc import AsyncIterator, Callable, Coroutine

import numpy as np
import pytest

from engine.config import CacheConfig, EngineConfig
from gateway.backends.base import (
    BackendFailedError,
    BackendOverloadedError,
    BackendUnavailableError,
    GenerationRequest,
    RequestRejectedError,
    Sampling,
    TokenLogprobs,
)
from gateway.backends.local import LocalBackend, Supervision
from gateway.errors import problem_of
from prefixcache.hashing import hash_blocks, namespace
from prefixcache.interface import Scope
from tests.support.chain_runner import VOCAB_SIZE, expected_prompt_logprobs, expected_tokens
from tests.support.chain_worker import COMMAND
from tests.support.processes import is_running

QUICK = Supervision(start_timeout=20, heartbeat_timeout=3, first_backoff=0.05, max_backoff=0.2)
Start = Callable[..., Coroutine[None, None, LocalBackend]]


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    backends = []

    async def start(path: str = "chain", *, num_blocks: int = 256) -> LocalBackend:
        config = EngineConfig(model_path=path, cache=CacheConfig(block_size=8, num_blocks=num_blocks))
        backend = LocalBackend(config, supervision=QUICK, command=COMMAND)
        backends.append(backend)
        await backend.start()
        return backend

    yield start
    for backend in backends:
        await backend.stop()


def request_of(backend: LocalBackend, prompt: list[int], max_tokens: int = 20) -> GenerationRequest:
    info = backend.model_info()
    token_ids = np.asarray(prompt, dtype=np.int32)
    scope = Scope(namespace(info.namespace_fields, scope="public"), 0)
    return GenerationRequest(
        request_id="x",
        token_ids=token_ids,
        block_hashes=hash_blocks(token_ids, block_size=info.block_size, scopes=(scope,), seed=info.hash_seed),
        scopes=[(scope.namespace, 0)],
        hash_epoch=info.hash_epoch,
        sampling=Sampling(max_tokens=max_tokens),
    )


async def answer(backend: LocalBackend, prompt: list[int], max_tokens: int = 20) -> list[int]:
    generation = await backend.generate(request_of(backend, prompt, max_tokens))
    return [token async for batch in generation for token in batch.token_ids]


async def restarted(backend: LocalBackend, num_restarts: int = 1) -> None:
    while not (backend.num_restarts >= num_restarts and backend.ready()):
        await asyncio.sleep(0.02)


async def test_backend_generates_and_reuses_a_prefix(start: Start) -> None:
    backend = await start()
    assert await backend.wait_settled() == "ready"
    prompt = list(range(1, 60))
    assert await answer(backend, prompt) == expected_tokens(prompt, 20)
    generation = await backend.generate(request_of(backend, prompt))
    assert (generation.admission.num_prompt_tokens, generation.admission.num_cached_tokens) == (59, 56)
    assert generation.admission.seconds_ago >= 0.002, "a step of the chain worker takes so long, and is told at its end"
    generation.abort()
    generation.abort()


async def test_backend_hands_on_logprobs_and_refuses_a_bias_outside_the_vocabulary(start: Start) -> None:
    backend = await start()
    await backend.wait_settled()
    prompt = list(range(1, 20))
    request = request_of(backend, prompt)
    asked = dataclasses.replace(request.sampling, num_logprobs=2, logit_bias={VOCAB_SIZE - 1: 1.0})
    generation = await backend.generate(dataclasses.replace(request, sampling=asked))
    batches = [batch async for batch in generation]
    assert [said for batch in batches for said in batch.logprobs or ()] == [
        TokenLogprobs(-token / 8, [(0, 0.0), (1, -1.0)], 1 + token % 5) for token in expected_tokens(prompt, 20)
    ]
    assert all(len(batch.token_ids) == len(batch.logprobs or ()) for batch in batches)
    outside = dataclasses.replace(asked, logit_bias={VOCAB_SIZE: 1.0})
    with pytest.raises(RequestRejectedError, match=f"logit_bias: got token {VOCAB_SIZE}") as caught:
        await backend.generate(dataclasses.replace(request, sampling=outside))
    assert caught.value.param == "logit_bias"


async def test_backend_tells_several_answers_apart_and_ends_one_alone(start: Start) -> None:
    backend = await start()
    await backend.wait_settled()
    prompt = list(range(1, 20))
    request = request_of(backend, prompt)
    several = dataclasses.replace(request, sampling=dataclasses.replace(request.sampling, n=3, seed=5))
    generation = await backend.generate(several)
    answers: dict[int, list[int]] = {0: [], 1: [], 2: []}
    async for batch in generation:
        answers[batch.choice] += batch.token_ids
        if batch.choice == 1:
            generation.end(1)
            generation.end(1)
    expected = [expected_tokens(prompt, 20, seed=5, index=index) for index in range(3)]
    assert [answers[0], answers[2]] == [expected[0], expected[2]]
    assert answers[1] == expected[1][: len(answers[1])] != []
    assert await answer(backend, prompt) == expected_tokens(prompt, 20)
    async with asyncio.timeout(5):
        while (await backend.snapshot()).num_running:
            await asyncio.sleep(0.01)


async def test_backend_whose_last_answer_is_ended_says_no_more(start: Start) -> None:
    backend = await start()
    await backend.wait_settled()
    request = request_of(backend, [1, 2, 3], max_tokens=400)
    generation = await backend.generate(
        dataclasses.replace(request, sampling=dataclasses.replace(request.sampling, n=2))
    )
    seen: set[int] = set()
    async for batch in generation:
        assert batch.choice not in seen, "more of an answer that was ended"
        seen.add(batch.choice)
        generation.end(batch.choice)
    assert seen == {0, 1}
    async with asyncio.timeout(5):
        while (await backend.snapshot()).num_running:
            await asyncio.sleep(0.01)


async def test_backend_tells_of_a_prompt_before_the_answer(start: Start) -> None:
    backend = await start()
    await backend.wait_settled()
    prompt = list(range(1, 40))
    request = request_of(backend, prompt)
    for max_tokens in (0, 3):
        sampling = dataclasses.replace(request.sampling, num_prompt_logprobs=1, max_tokens=max_tokens)
        generation = await backend.generate(dataclasses.replace(request, request_id=str(max_tokens), sampling=sampling))
        assert generation.admission.reasons == {"disabled": 5}
        async for _ in generation:
            assert len(generation.prompt_logprobs[0]) == 38
        said = [(told.logprob, told.rank) for told in generation.prompt_logprobs[0]]
        assert said == [(told.logprob, told.rank) for told in expected_prompt_logprobs(prompt, 1)]


async def test_backend_not_ready_is_unavailable(start: Start) -> None:
    backend = await start()
    with pytest.raises(BackendUnavailableError):
        backend.model_info()
    with pytest.raises(BackendUnavailableError):
        await backend.snapshot()


async def test_backend_worker_that_cannot_start_fails_for_good_with_the_reason(start: Start) -> None:
    backend = await start("refuse")
    assert await backend.wait_settled() == "failed: max_model_len: got 99, wanted at most 9"
    assert backend.num_restarts == 0


async def test_backend_worker_that_crashes_at_start_is_restarted(start: Start) -> None:
    backend = await start("crash")
    async with asyncio.timeout(20):
        while backend.num_restarts < 2:
            await asyncio.sleep(0.02)
    assert "status 3" in backend.state()


async def test_backend_request_that_the_engine_refuses_names_the_field(start: Start) -> None:
    backend = await start(num_blocks=8)
    await backend.wait_settled()
    with pytest.raises(RequestRejectedError, match="limit") as error:
        await backend.generate(request_of(backend, [1] * 80))
    assert error.value.param == "messages"


async def test_backend_without_memory_for_a_request_says_when_to_try_again_and_serves_the_next(start: Start) -> None:
    backend = await start("poor")
    await backend.wait_settled()
    with pytest.raises(BackendOverloadedError, match="memory ran out") as error:
        [_ async for _ in await backend.generate(request_of(backend, [1] * 80))]
    problem = problem_of(error.value)
    assert (problem.status, problem.headers) == (503, {"retry-after": "5"})
    assert b"engine_overloaded" in problem.body
    assert await answer(backend, [5] * 20) == expected_tokens([5] * 20, 20)
    assert backend.num_restarts == 0


@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "hung"])
async def test_backend_worker_lost_in_mid_stream_fails_its_streams_and_comes_back(
    start: Start, sign: signal.Signals
) -> None:
    backend = await start(num_blocks=2048)
    await backend.wait_settled()
    generations = [await backend.generate(request_of(backend, [i + 1] * 20, 1000)) for i in range(8)]

    async def read(generation) -> str:
        try:
            async for _ in generation:
                pass
        except BackendFailedError:
            return "failed"
        return "ended"

    readers = [asyncio.create_task(read(generation)) for generation in generations]
    await asyncio.sleep(0.1)
    os.kill(backend.worker_process_id, sign)
    async with asyncio.timeout(20):
        assert await asyncio.gather(*readers) == ["failed"] * 8
        await restarted(backend)
        assert await answer(backend, [5] * 30) == expected_tokens([5] * 30, 20)


async def test_backend_aborts_at_random_moments_free_every_block(start: Start) -> None:
    backend = await start()
    await backend.wait_settled()
    rng = random.Random(1)

    async def client(number: int) -> bool:
        prompt = [7] * 40 + [number + 1] * 5
        generation = await backend.generate(request_of(backend, prompt, 40))
        leave_after = rng.choice([None, rng.randint(1, 30)])
        got: list[int] = []
        async for batch in generation:
            got += batch.token_ids
            if leave_after is not None and len(got) >= leave_after:
                generation.abort()
                break
        assert got == expected_tokens(prompt, 40)[: len(got)]
        return leave_after is None and len(got) == 40

    outcomes = await asyncio.gather(*(client(number) for number in range(32)))
    assert any(outcomes)
    assert not all(outcomes)
    while (snapshot := await backend.snapshot()).num_running + snapshot.num_waiting:
        await asyncio.sleep(0.01)
    assert snapshot.blocks["free_blocks"] + snapshot.blocks["cached_blocks"] == snapshot.blocks["total_blocks"]


async def test_backend_cancelled_wait_for_admission_aborts_the_request(start: Start) -> None:
    backend = await start(num_blocks=16)
    await backend.wait_settled()
    hog = await backend.generate(request_of(backend, [1] * 20, 100))
    waiting = asyncio.create_task(backend.generate(request_of(backend, [2] * 20, 100)))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    hog.abort()
    async with asyncio.timeout(10):
        while (snapshot := await backend.snapshot()).num_running + snapshot.num_waiting:
            await asyncio.sleep(0.01)


async def test_backend_stop_ends_generations_with_an_error_and_the_process(start: Start) -> None:
    backend = await start()
    await backend.wait_settled()
    generation = await backend.generate(request_of(backend, [1] * 20, 1000))
    process_id = backend.worker_process_id
    await backend.stop()
    with pytest.raises(BackendFailedError, match="the server is stopping"):
        async for _ in generation:
            pass
    with pytest.raises(ProcessLookupError):
        os.kill(process_id, 0)


GATEWAY_THAT_DIES = """
import asyncio, os, sys
from engine.config import EngineConfig
from gateway.backends.local import LocalBackend
from tests.support.chain_worker import COMMAND

async def main():
    backend = LocalBackend(EngineConfig(model_path="chain"), command=COMMAND)
    await backend.start()
    while backend.worker_process_id is None:
        await asyncio.sleep(0.001)
    if sys.argv[1] == "serving":
        await backend.wait_settled()
    print(backend.worker_process_id, flush=True)
    os.kill(os.getpid(), 9)

asyncio.run(main())
"""


@pytest.mark.parametrize("moment", ["at-once", "serving"])
async def test_worker_ends_when_its_gateway_is_gone(moment: str) -> None:
    gateway = await asyncio.create_subprocess_exec(
        sys.executable, "-c", GATEWAY_THAT_DIES, moment, stdout=asyncio.subprocess.PIPE
    )
    assert gateway.stdout is not None
    worker_id = int(await gateway.stdout.readline())
    await gateway.wait()
    async with asyncio.timeout(20):
        while is_running(worker_id):
            await asyncio.sleep(0.05)


async def test_backend_silent_worker_is_not_ready_before_it_is_given_up(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.backends.local.backend.QUIET_SECONDS", 1.5)
    backend = await start()
    await backend.wait_settled()
    os.kill(backend.worker_process_id, signal.SIGSTOP)
    async with asyncio.timeout(20):
        while backend.ready():
            await asyncio.sleep(0.02)
    assert backend.num_restarts == 0
    assert backend.state() == "ready"


async def test_backend_unavailable_error_tells_when_to_come_back(start: Start) -> None:
    backend = await start("crash")
    async with asyncio.timeout(20):
        while backend.num_restarts < 2:
            await asyncio.sleep(0.02)
    with pytest.raises(BackendUnavailableError) as error:
        backend.model_info()
    assert error.value.retry_after_seconds >= 1
