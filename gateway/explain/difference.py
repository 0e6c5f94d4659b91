"""The text on both sides of where a prompt leaves the nearest cached text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from gateway.explain.places import Place
from prefixcache.interface import Explanation

_TERMINATOR_CHARS = 8


class Decoder(Protocol):
    """The part of a tokenizer that is needed."""

    def decode(self, token_ids: Sequence[int]) -> str:
        """Turn tokens into text."""
        ...


@dataclass(frozen=True, slots=True)
class Difference:
    """Some characters before and behind it; whole characters, though tokens may be parts of one."""

    common: str
    prompt: str
    cached: str
    prompt_part: str
    """The prompt's side with what is in common before it, as far as both lie in the region that differs."""
    cached_part: str
    """The cached side of the same; it ends where the text that follows the region in the prompt begins."""
    is_whole: bool
    """Both parts end with their region, and not with what is shown."""


def difference_of(explanation: Explanation, place: Place | None, decoder: Decoder) -> Difference:
    """Decode an explanation; without a place all that is shown counts as the region."""
    common, prompt, cached = (
        np.frombuffer(side, dtype="<i4").tolist()
        for side in (explanation.common, explanation.prompt_ahead, explanation.cached_ahead)
    )
    before = len(common)
    end = len(prompt)
    if place is not None:
        before = min(before, explanation.num_common_tokens - place.start)
        end = min(end, place.end - explanation.num_common_tokens)
    own = common[len(common) - before :]
    prompt_part = decoder.decode([*own, *prompt[:end]])
    following = decoder.decode(prompt[end:])[:_TERMINATOR_CHARS]
    cached_part, found, _ = decoder.decode([*own, *cached]).partition(following) if following else ("", "", "")
    if not following:
        cached_part = decoder.decode([*own, *cached])
    prompt_text, cached_text = decoder.decode([*common, *prompt]), decoder.decode([*common, *cached])
    shared = prompt_text[: common_length(prompt_text, cached_text)]
    return Difference(
        common=shared,
        prompt=prompt_text[len(shared) :],
        cached=cached_text[len(shared) :],
        prompt_part=prompt_part,
        cached_part=cached_part,
        is_whole=bool(found),
    )


def common_length(left: str, right: str) -> int:
    """Count the characters that two texts begin with in common."""
    pairs = zip(left, right, strict=False)
    return next((index for index, (one, other) in enumerate(pairs) if one != other), min(len(left), len(right)))
