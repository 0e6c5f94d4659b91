"""What the warmer does with an engine that restarts, fails or takes long."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import numpy as np
import pytest

from gateway.auth import Identity
from gateway.backends.base import BackendUnavailableError, RequestRejectedError
from gateway.backends.control import HashedPrompt, WarmUp
from gateway.prefix import PrefixHasher
from gateway.prompts.versions import Retention
from gateway.prompts.warming import Warmer, WarmPrompt
from tests.gateway.support.fake_backend import FakeBackend
from tests.gateway.support.server import until


class MoodyBackend(FakeBackend):
    """Raises what it is told to, once."""

    error: Exception | None = None

    async def warm(self, prompt: HashedPrompt) -> WarmUp:
        error, self.error = self.error, None
        if error is not None:
            raise error
        return await super().warm(prompt)


@pytest.fixture
def engine() -> MoodyBackend:
    return MoodyBackend()


@contextlib.asynccontextmanager
async def warming(engine: MoodyBackend, *prompts: WarmPrompt) -> AsyncIterator[Warmer]:
    warmer = Warmer(engine, budget_seconds=5, poll_seconds=0.01)
    await warmer.keep(prompts)
    warmer.start()
    yield warmer
    await warmer.stop()


def prompt(engine: MoodyBackend, number: int, **retention: object) -> WarmPrompt:
    tokens = np.full(16, number, dtype=np.int32)

    def hashed() -> HashedPrompt:
        return PrefixHasher().prompt(tokens, identity=Identity("t"), model=engine.model_info())

    return WarmPrompt(f"p{number}", f"name {number}", Retention(**retention), 0, hashed)  # type: ignore[arg-type]


def order(engine: MoodyBackend) -> list[int]:
    return [int(warmed.token_ids[0]) for warmed in engine.warmed]


async def test_pinned_prompts_come_first_then_those_of_higher_priority(engine: MoodyBackend) -> None:
    prompts = [
        prompt(engine, 1),
        prompt(engine, 2, priority=1),
        prompt(engine, 3, pin=True),
        prompt(engine, 4, priority=7),
    ]
    async with warming(engine, *prompts) as warmer:
        await until(warmer.is_settled)
    assert order(engine) == [3, 4, 2, 1]


async def test_an_engine_that_fails_meanwhile_is_ready_all_the_same_and_warmed_behind(engine: MoodyBackend) -> None:
    engine.error = BackendUnavailableError("it does not answer")
    async with warming(engine, prompt(engine, 1), prompt(engine, 2)) as warmer:
        await until(warmer.is_settled)
        await until(lambda: {warmer.state(handle).status for handle in ("p1", "p2")} == {"warm"})


async def test_an_engine_that_is_not_there_is_waited_for(engine: MoodyBackend) -> None:
    engine.is_up = False
    async with warming(engine, prompt(engine, 1)) as warmer:
        await asyncio.sleep(0.05)
        assert not warmer.is_settled()
        engine.is_up = True
        await until(warmer.is_settled)
        assert warmer.state("p1").num_cached_tokens == 16


async def test_a_prompt_that_is_refused_is_listed_with_the_reason_and_holds_up_no_other(engine: MoodyBackend) -> None:
    engine.error = RequestRejectedError("no such thing")
    async with warming(engine, prompt(engine, 1, priority=1), prompt(engine, 2)) as warmer:
        await until(lambda: warmer.state("p2").status == "warm")
        assert (warmer.state("p1").status, warmer.state("p1").detail) == ("failed", "no such thing")
        engine.warm_refusal = "does_not_fit"
        assert (await warmer.warm_now(prompt(engine, 3))).detail == "does_not_fit"


async def test_a_prompt_that_is_given_up_while_it_is_warmed_keeps_nothing(engine: MoodyBackend) -> None:
    async with warming(engine) as warmer:
        await asyncio.sleep(0.05)  # the start is over
        engine.warm_delay_seconds = 0.1
        await warmer.keep([prompt(engine, 1, pin=True, priority=2)])
        await asyncio.sleep(0.05)
        await warmer.keep([])
        await until(lambda: engine.warmed)
        await asyncio.sleep(0.1)
        assert not engine.pins
        assert not engine.priorities
        assert warmer.state("p1").status == "waiting"
