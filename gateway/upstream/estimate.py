"""What one upstream has cached, as far as that can be told from outside.

Every prompt that it answered counts as cached, by whole blocks and with least recently used ones going first; what it reports
as cached corrects that. Holds tokens and hashes; knows no text and no time.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, replace

from gateway.accounting.forms import prompt_of
from gateway.backends.control import HashedPrompt
from prefixcache.interface import Explanation, PrefixCacheConfig, Reason
from prefixcache.shadow import ShadowIndex

MAX_OWNERS = 4096


@dataclass(frozen=True, slots=True)
class Prediction:
    """Of one prompt, before it was answered."""

    prompt: HashedPrompt
    explanation: Explanation

    @property
    def num_tokens(self) -> int:
        """That will be reused."""
        return self.explanation.num_cached_tokens


@dataclass(slots=True)
class Sums:
    """Over answers that told what was cached, since the gateway's start."""

    requests: int = 0
    predicted_tokens: int = 0
    reported_tokens: int = 0
    rendered_tokens: int = 0
    """Of the prompts as they are rendered here."""
    prompt_tokens: int = 0
    """The same as the upstream counts them; far from the other, the tokenizer here is not the upstream's."""
    corrections: int = 0
    """Answers that told of less than was predicted."""


class EstimatedCache:
    """Of one upstream.

    Args:
        config: how many tokens may be in it, and in blocks of what size; partial blocks are never reused.
    """

    def __init__(self, config: PrefixCacheConfig) -> None:
        self.sums = Sums()
        self._index = ShadowIndex[None](config)
        self._owners: OrderedDict[int, str] = OrderedDict()
        self._num_answers = 0

    @property
    def num_blocks(self) -> int:
        """Blocks that hold something."""
        snapshot = self._index.snapshot()
        return snapshot.total_blocks - snapshot.free_blocks

    def predict(self, prompt: HashedPrompt) -> Prediction:
        """Say what of a prompt will be reused, and why no more. Changes nothing."""
        explanation = self._index.explain(prompt_of(prompt))
        if explanation.reason is Reason.BELOW_MIN_REUSE:  # parts of blocks are nobody's to copy here
            reason = Reason.DIVERGED if explanation.block else Reason.NEVER_CACHED
            explanation = replace(explanation, reason=reason)
        return Prediction(prompt, explanation)

    def learn(
        self, prediction: Prediction, completion_id: str, num_reported: int | None, num_prompt: int | None
    ) -> None:
        """Take what became of a prompt.

        Args:
            prediction: made when it was sent.
            completion_id: names the answer in explanations of later ones.
            num_reported: tokens that the upstream took from its cache; None: it did not tell.
            num_prompt: tokens of the prompt as it counts them.
        """
        if num_reported is not None:
            self.correct(prediction, num_reported)
            sums = self.sums
            sums.requests += 1
            sums.predicted_tokens += prediction.num_tokens
            sums.reported_tokens += num_reported
            sums.rendered_tokens += len(prediction.prompt.token_ids)
            sums.prompt_tokens += num_prompt or 0
        self._num_answers += 1
        self._owners[self._num_answers] = completion_id
        if len(self._owners) > MAX_OWNERS:
            self._owners.popitem(last=False)
        self._index.serve(prompt_of(prediction.prompt), None, owner=self._num_answers)

    def correct(self, prediction: Prediction, num_reported: int) -> None:
        """Forget what the upstream turned out not to have: the blocks behind what it reported, and all behind those."""
        if num_reported < prediction.num_tokens:
            self.sums.corrections += 1
            self._index.forget(prompt_of(prediction.prompt), num_reported)

    def owner(self, explanation: Explanation) -> str | None:
        """Name the answer whose prompt is nearest; None: there is none, or it is forgotten."""
        return self._owners.get(explanation.owner)


def corrected(explanation: Explanation, num_reported: int | None, block_size: int) -> Explanation:
    """Put what the upstream reported in the place of what was predicted, and the reason that follows from it."""
    if num_reported is None:
        return explanation
    told = replace(explanation, num_cached_tokens=min(num_reported, explanation.num_prompt_tokens))
    if explanation.num_prompt_tokens - num_reported <= block_size:
        return replace(told, reason=Reason.HIT)
    if num_reported < explanation.num_cached_tokens:
        return replace(told, reason=Reason.EVICTED, block=num_reported // block_size)
    return told
