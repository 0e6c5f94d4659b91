"""Counts of long texts, remembered: a text of a chat comes again with every request."""

from __future__ import annotations

from hashlib import blake2b

from gateway.context.units import Counter
from gateway.normalize.memory import TurnMemory

FROM_CHARS = 256
"""Shorter texts are counted sooner than they are looked up."""


def remembering(count: Counter, memory: TurnMemory, scope: str) -> Counter:
    """Give a counter that counts each long text once, as long as it is not forgotten.

    Args:
        count: gives the counts.
        memory: where they are kept.
        scope: whose texts they are.
    """

    def counted(text: str) -> int:
        if len(text) < FROM_CHARS:
            return count(text)
        key = b"count" + blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
        found: int | None = memory.find(scope, key)
        if found is None:
            found = count(text)
            memory.keep(scope, key, found)
        return found

    return counted
