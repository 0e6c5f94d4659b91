"""How much each tenant was served, and who is next: fair in tokens, whoever queues how many requests.

Source: virtual token counter, Sheng et al., "Fairness in Serving Large Language Models", 2024. There a tenant that comes
back is lifted to the least counter of those that wait; here to the service that an equal share would have given by
now, so that no stream of ever new tenants can starve one that has been served before.
"""

from __future__ import annotations

GENERATED_WEIGHT = 2
"""Service of a generated token, in prompt tokens."""
_KEPT_TENANTS = 64


class FairShare:
    """Counters by tenant. Only tenants that wait compete."""

    def __init__(self) -> None:
        self._served: dict[str, float] = {}
        self._waiting: set[str] = set()
        self._equal_share = 0.0
        """Service of one who would always have waited, with as many others as there were."""

    def served(self, tenant: str) -> float:
        """Return what a tenant that waits was served, in weighted tokens; least is next."""
        return self._served[tenant]

    def enter(self, tenant: str) -> None:
        """A tenant that had nothing waiting has now. It brings no credit from the time when it wanted nothing."""
        self._waiting.add(tenant)
        self._served[tenant] = max(self._served.get(tenant, 0.0), self._equal_share)

    def leave(self, tenant: str) -> None:
        """Nothing of this tenant waits any more; what it was served beyond an equal share is remembered."""
        self._waiting.discard(tenant)
        if len(self._served) > 2 * len(self._waiting) + _KEPT_TENANTS:
            self._served = {
                name: served
                for name, served in self._served.items()
                if name in self._waiting or served > self._equal_share
            }

    def charge(self, tenant: str, num_tokens: float) -> None:
        """A tenant was served."""
        self._served[tenant] = self._served.get(tenant, self._equal_share) + num_tokens
        self._equal_share += num_tokens / max(1, len(self._waiting))
