"""What the cache could have given: the same traffic with all safe rules on, in a pool as good as unlimited.

It outlives the engine's process, so that what a restart costs is a loss like any other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import NamedTuple

import xxhash

from gateway.accounting.changes import BorderTable, edits_between
from gateway.accounting.forms import prompt_of
from gateway.backends.control import HashedPrompt
from prefixcache.interface import PrefixCacheConfig
from prefixcache.shadow import ShadowIndex

MAX_BLOCKS = 65_536
"""For the sample: 33 MB where its blocks have 32 tokens. A pool that is larger itself takes as many as it has."""


class Change(NamedTuple):
    """Tokens [start, stop) of a prompt with all safe rules on; what was sent in their place is told by a digest."""

    start: int
    stop: int
    digest: int


@dataclass(frozen=True, slots=True, eq=False)
class Best:
    """A prompt as it would be with all safe rules on."""

    prompt: HashedPrompt
    num_sent_tokens: int
    """Of the prompt as it was sent."""
    changes: Sequence[Change]
    """Where the sent one differs, in order."""

    @classmethod
    def of(cls, sent: HashedPrompt, best: HashedPrompt, borders: BorderTable) -> Best:
        """Compare it with the prompt that was sent, which may be the same object."""
        edits = [] if best is sent else edits_between(sent.token_ids, best.token_ids, borders)
        digests = [xxhash.xxh3_64_intdigest(sent.token_ids[edit.start : edit.stop].tobytes()) for edit in edits]
        changes = (Change(edit.new_start, edit.new_stop, told) for edit, told in zip(edits, digests, strict=True))
        return cls(best, len(sent.token_ids), tuple(changes))


@dataclass(frozen=True, slots=True)
class Possible:
    """What could have been reused of one prompt."""

    num_tokens: int
    """Those of the sent prompt that need not have been computed: reused, or dropped by a rule."""
    num_dropped: int = 0
    """How many fewer tokens the prompt has with all safe rules on."""
    is_parted: bool = False
    """As it was sent it differs from the prompt that brought what is reused, before the end of that."""


class Maximum:
    """For one gateway.

    Args:
        config: of the pool, scaled to the sample.
        max_blocks: of the shadow; the least recently used make room when it is full, and the maximum is a lower bound.
    """

    def __init__(self, config: PrefixCacheConfig, *, max_blocks: int = MAX_BLOCKS) -> None:
        num_blocks = max(max_blocks, config.num_blocks)
        self._shadow = ShadowIndex[Sequence[Change]](replace(config, num_blocks=num_blocks, ghost_factor=0))

    @property
    def evicted_blocks(self) -> int:
        """Where this is more than 0, more may have been possible than is said."""
        return self._shadow.num_evicted

    def admit(self, best: Best) -> Possible:
        """Look a prompt up, then cache it; of one that is longer than the pool nothing is possible."""
        hit = self._shadow.serve(prompt_of(best.prompt), best.changes)
        if hit is None:
            return Possible(0)
        num_dropped = best.num_sent_tokens - len(best.prompt.token_ids)
        parting = None if hit.mark is None else _parting(best.changes, hit.mark)
        is_parted = parting is not None and parting < hit.num_cached_tokens
        return Possible(max(0, hit.num_cached_tokens + num_dropped), num_dropped, is_parted)

    def extend(self, best: Best, answer: Sequence[int]) -> None:
        """Cache an answer behind a prompt that was admitted; its last token is never computed."""
        self._shadow.extend(prompt_of(best.prompt), answer[:-1], best.changes)


def _parting(one: Sequence[Change], other: Sequence[Change]) -> int | None:
    """Give the first token where two prompts, equal with all safe rules on, were not sent alike; None: nowhere."""
    for pair in zip_longest(one, other):
        if pair[0] != pair[1]:
            return min(change.start for change in pair if change is not None)
    return None
