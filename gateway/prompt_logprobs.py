"""How likely a prompt's tokens were, in vLLM's shape and as entries like those of an answer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from gateway.backends.base import GenerationRequest, TokenLogprobs
from gateway.logprobs import Entry, entry_of
from gateway.tokenizer import TokenArray, Tokenizer


@dataclass(frozen=True, slots=True)
class ScoredPrompt:
    """A prompt, and what is said of its tokens, which is all there when its first answer begins."""

    token_ids: TokenArray
    logprobs: Sequence[TokenLogprobs]
    """Of each token but the first."""
    tokenizer: Tokenizer

    def by_token(self, num: int | None = None) -> list[dict[str, Any] | None]:
        """Print vLLM's `prompt_logprobs`: each token and the `num` likeliest by id, null for the first; None: all."""
        return [None, *(self._by_id(token_id, said, num) for token_id, said in self._pairs())]

    def entries(self, num: int) -> list[Entry]:
        """Give OpenAI's entry of each token, with the `num` likeliest; the first one has no logarithms."""
        first = TokenLogprobs(0.0, (), 0)
        said = [first, *(TokenLogprobs(one.logprob, one.likeliest[:num], one.rank) for one in self.logprobs)]
        entries = [entry_of(self.tokenizer, *pair) for pair in zip(self.token_ids.tolist(), said, strict=True)]
        entries[0] |= {"logprob": None, "top_logprobs": None}
        return entries

    def _pairs(self) -> Iterator[tuple[int, TokenLogprobs]]:
        return zip(self.token_ids[1:].tolist(), self.logprobs, strict=True)

    def _by_id(self, token_id: int, said: TokenLogprobs, num: int | None) -> dict[str, Any]:
        ranked = [(token_id, said.logprob, said.rank)]
        ranked += [(other, logprob, rank) for rank, (other, logprob) in enumerate(said.likeliest[:num], 1)]
        return {
            str(other): {
                "logprob": logprob,
                "rank": rank,
                "decoded_token": self.tokenizer.token_bytes(other).decode(errors="replace"),
            }
            for other, logprob, rank in ranked
        }


def scored_prompts(
    requests: Sequence[GenerationRequest], logprobs: Sequence[Sequence[TokenLogprobs]], tokenizer: Tokenizer
) -> list[ScoredPrompt]:
    """Put prompts beside what is said of them; none where nobody asks."""
    if requests[0].sampling.num_prompt_logprobs is None:
        return []
    pairs = zip(requests, logprobs, strict=True)
    return [ScoredPrompt(request.token_ids, said, tokenizer) for request, said in pairs]
