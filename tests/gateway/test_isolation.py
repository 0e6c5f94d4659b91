"""What a tenant can tell of another one's prompts, asked of a real engine process with the chain runner for a model."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from engine.config import CacheConfig, EngineConfig
from gateway.auth import Identity
from gateway.backends.base import Admission, Sampling
from gateway.backends.local import LocalBackend
from gateway.prefix import PrefixHasher
from tests.gateway.test_local_backend import QUICK
from tests.support.chain_worker import COMMAND

BLOCK_SIZE = 8
TEXT, UNSEEN = list(range(1, 65)), list(range(65, 129))


@pytest.fixture
async def backend() -> AsyncIterator[LocalBackend]:
    config = EngineConfig(model_path="chain", cache=CacheConfig(block_size=BLOCK_SIZE, num_blocks=128))
    backend = LocalBackend(config, supervision=QUICK, command=COMMAND)
    await backend.start()
    assert await backend.wait_settled() == "ready"
    yield backend
    await backend.stop()


async def ask(backend: LocalBackend, tenant: str, tokens: list[int], *, num_public_tokens: int = 0) -> Admission:
    request = PrefixHasher().request(
        f"{tenant}-{tokens[0]}-{tokens[-1]}",
        np.asarray(tokens, dtype=np.int32),
        Sampling(max_tokens=2),
        identity=Identity(tenant),
        model=backend.model_info(),
        num_public_tokens=num_public_tokens,
    )
    generation = await backend.generate(request)
    async for _ in generation:
        pass
    return generation.admission


async def all_that_shows(backend: LocalBackend, tenant: str, tokens: list[int]) -> tuple[Any, ...]:
    """Usage and reasons, explain, and how every counter of the metrics moved."""
    hashed = PrefixHasher().prompt(
        np.asarray(tokens, dtype=np.int32), identity=Identity(tenant), model=backend.model_info()
    )
    explained = replace(await backend.explain(hashed), prompt_ahead=b"", moment=0)  # its own text, and the clock
    before = (await backend.snapshot()).counters
    admission = await ask(backend, tenant, tokens)
    after = (await backend.snapshot()).counters
    shown = replace(admission, seconds_ago=0.0)  # a clock, too
    return shown, explained, {name: after[name] - before[name] for name in after}


async def test_a_text_of_another_tenant_looks_like_one_that_nobody_sent(backend: LocalBackend) -> None:
    assert (await ask(backend, "a", TEXT)).num_cached_tokens == 0
    assert (await ask(backend, "a", TEXT)).num_cached_tokens > 0  # the positive control
    seen, unseen = await all_that_shows(backend, "b", TEXT), await all_that_shows(backend, "c", UNSEEN)
    assert seen == unseen
    assert seen[0].num_cached_tokens == 0


async def test_a_public_prompt_is_shared_and_what_follows_it_is_not(backend: LocalBackend) -> None:
    num_public = 4 * BLOCK_SIZE + 3  # the block that is public in part is private
    seen = [
        (await ask(backend, tenant, TEXT, num_public_tokens=num_public)).num_cached_tokens for tenant in ("a", "b", "b")
    ]
    assert seen[:2] == [0, 4 * BLOCK_SIZE]
    assert seen[2] > 4 * BLOCK_SIZE
