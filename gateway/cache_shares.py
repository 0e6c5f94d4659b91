"""Whose the blocks in the cache are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gateway.auth import Identity
from gateway.backends.base import Backend
from gateway.prefix import PUBLIC_SCOPE, namespace_of


@dataclass(frozen=True, slots=True)
class CacheShares:
    """Blocks that are cached or being computed. The engine knows namespaces only, and whose they are cannot be read off."""

    by_tenant: Mapping[str, int]
    """By id; 0: it has none."""
    public: int
    """Of prompts that are registered for everybody."""
    other: int
    """Of whom nobody asked for: retired tenants, and parts that a `cache_salt` keeps apart."""


async def cache_shares(backend: Backend, tenants: Iterable[str]) -> CacheShares:
    """Count the blocks of each of these tenants (ids), of the public prompts, and the rest.

    Raises: BackendUnavailableError: the engine does not serve, or does not answer in time.
    """
    model = backend.model_info()
    rest = dict(await backend.blocks_by_namespace())
    by_tenant = {tenant: rest.pop(namespace_of(Identity(tenant).scope, model), 0) for tenant in dict.fromkeys(tenants)}
    public = rest.pop(namespace_of(PUBLIC_SCOPE, model), 0)
    return CacheShares(by_tenant, public, sum(rest.values()))
