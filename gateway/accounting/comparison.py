"""Two shadow caches side by side: one of prompts before some rules, one of the same prompts after them.

Which rule makes a difference is seen by comparing a prompt with its *twin*, the earlier prompt whose blocks it met in
one cache: where the two part in the other one, some rule has changed one of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from gateway.accounting.forms import Form, Forms, prompt_of
from prefixcache.interface import PrefixCacheConfig
from prefixcache.shadow import ShadowIndex


class _Mark(NamedTuple):
    before: Form
    after: Form


@dataclass(frozen=True, slots=True)
class Outcome:
    """What would have been reused of one prompt."""

    before_tokens: int
    """Without the rules."""
    after_tokens: int
    """With them."""
    saved_by: str | None
    """The rule without which the prompt would part from its twin. None: they do not part, or at no rule's change."""
    lost_by: str | None
    """The rule with which it does."""


class Comparison:
    """For one pool.

    Args:
        config: of the pool, scaled to the sample.
    """

    def __init__(self, config: PrefixCacheConfig) -> None:
        self._before = ShadowIndex[_Mark](config)
        self._after = ShadowIndex[_Mark](config)

    def admit(self, forms: Forms) -> Outcome | None:
        """Look a prompt up in both caches, then cache it; None: it is longer than the pool."""
        own = _Mark(forms.without, forms.with_rules)
        before = self._before.serve(prompt_of(forms.first), own)
        after = self._after.serve(prompt_of(forms.last), own)
        if before is None or after is None:
            return None
        size = self._before.config.block_size
        return Outcome(
            before.num_cached_tokens,
            after.num_cached_tokens,
            saved_by=after.mark and own.before.parting_rule(after.mark.before, size),
            lost_by=before.mark and own.after.parting_rule(before.mark.after, size),
        )

    def extend(self, forms: Forms, answer: Sequence[int]) -> None:
        """Cache an answer behind both forms of a prompt that was admitted; its last token is never computed."""
        own = _Mark(forms.without, forms.with_rules)
        self._before.extend(prompt_of(forms.first), answer[:-1], own)
        self._after.extend(prompt_of(forms.last), answer[:-1], own)
