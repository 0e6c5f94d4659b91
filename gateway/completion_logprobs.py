"""Log probabilities in the shape that completions have: lists side by side, and where in the text each token begins."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Any

from gateway.logprobs import Entry


class CompletionLogprobs:
    """Prints those of one answer, part by part."""

    def __init__(self) -> None:
        # A character may take several tokens: it counts where it is whole.
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._num_chars = 0

    def print(self, entries: Sequence[Entry], *, num_unwritten: int = 0) -> dict[str, Any]:
        """Print the next tokens; the first `num_unwritten` of them have no place in the text."""
        printed: dict[str, list[Any]] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        for place, entry in enumerate(entries):
            printed["tokens"].append(entry["token"])
            printed["token_logprobs"].append(entry["logprob"])
            printed["top_logprobs"].append(_likeliest(entry))
            printed["text_offset"].append(self._num_chars)
            if place >= num_unwritten:
                self._num_chars += len(self._decoder.decode(bytes(entry["bytes"])))
        return printed


def _likeliest(entry: Entry) -> dict[str, float] | None:
    """The token itself is always among them."""
    if entry["top_logprobs"] is None:
        return None
    return {entry["token"]: entry["logprob"]} | {other["token"]: other["logprob"] for other in entry["top_logprobs"]}
