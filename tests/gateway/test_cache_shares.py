"""Whose the blocks in the cache are: in the fake, and through a real worker."""

from __future__ import annotations

import numpy as np
import pytest

from engine.config import CacheConfig, EngineConfig
from gateway.auth import Identity
from gateway.backends.base import Backend, BackendUnavailableError, Sampling
from gateway.backends.local import LocalBackend
from gateway.cache_shares import CacheShares, cache_shares
from gateway.prefix import PrefixHasher
from tests.gateway.support.fake_backend import BLOCK_SIZE, FakeBackend
from tests.gateway.test_local_backend import QUICK
from tests.support.chain_worker import COMMAND


async def serve(backend: Backend, identity: Identity, num_blocks: int, *, num_public_blocks: int = 0) -> None:
    """Let a prompt of so many blocks, and a token, be cached."""
    request = PrefixHasher().request(
        f"{identity.tenant}-{identity.salt}",
        np.arange(1, num_blocks * BLOCK_SIZE + 2, dtype=np.int32),
        Sampling(max_tokens=1),
        identity=identity,
        model=backend.model_info(),
        num_public_tokens=num_public_blocks * BLOCK_SIZE,
    )
    async for _ in await backend.generate(request):
        pass


async def check_shares(backend: Backend) -> None:
    assert await cache_shares(backend, ["a"]) == CacheShares({"a": 0}, public=0, other=0)
    await serve(backend, Identity("a"), 3)
    await serve(backend, Identity("b"), 7, num_public_blocks=2)
    await serve(backend, Identity("public"), 1)
    await serve(backend, Identity("b", salt="x"), 4)
    await serve(backend, Identity("retired"), 6)
    shares = await cache_shares(backend, ["a", "b", "public", "idle"])
    assert shares == CacheShares({"a": 3, "b": 5, "public": 1, "idle": 0}, public=2, other=10)
    await serve(backend, Identity("a"), 3)
    assert await cache_shares(backend, ["a", "b", "public", "idle"]) == shares, "what is found is nobody else's"


async def test_each_tenant_has_its_blocks_and_the_rest_is_others() -> None:
    backend = FakeBackend(reply=[0])
    await check_shares(backend)
    backend.is_up = False
    with pytest.raises(BackendUnavailableError):
        await cache_shares(backend, ["a"])


async def test_worker_counts_the_blocks_of_each_namespace() -> None:
    config = EngineConfig(model_path="chain", cache=CacheConfig(block_size=BLOCK_SIZE, num_blocks=64))
    backend = LocalBackend(config, supervision=QUICK, command=COMMAND)
    await backend.start()
    try:
        assert await backend.wait_settled() == "ready"
        await check_shares(backend)
    finally:
        await backend.stop()
