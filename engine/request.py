"""One generation as the scheduler sees it. Loads no torch."""

from __future__ import annotations

import itertools
from enum import Enum, auto

import numpy as np
import numpy.typing as npt

from engine.messages import SamplingParams
from prefixcache import BlockTable
from prefixcache.hashing import tidy_scopes
from prefixcache.interface import Prompt


class RequestStatus(Enum):
    """Where a request stands; whether it prefills or decodes follows from `num_computed_tokens`."""

    WAITING = auto()
    RUNNING = auto()
    FINISHED = auto()


class Request:
    """A prompt, the tokens generated so far, and how many of both have their KV in the cache.

    Only the scheduler writes to it.
    """

    def __init__(
        self, request_id: str, prompt: Prompt, sampling: SamplingParams, *, seed: int, tenant: str = ""
    ) -> None:
        self.request_id = request_id
        self.prompt = prompt
        self.sampling = sampling
        self.seed = seed
        self.tenant = tenant
        self.status = RequestStatus.WAITING
        self.table: BlockTable | None = None
        """Its blocks while it runs."""
        self.num_prompt_tokens = len(prompt.token_ids)
        self.num_tokens = self.num_prompt_tokens
        """Known tokens: prompt and output."""
        self.num_computed_tokens = 0
        """Of those, the ones whose KV is in the cache."""
        self.was_admitted = False
        """Reuse is counted at the first admission only."""
        self.num_cached_tokens = 0
        """Of the prompt, at that admission."""
        self.reasons: dict[str, int] = {}
        """Its prompt blocks by reason, in the order of the blocks."""
        self._token_ids = np.empty(self.num_prompt_tokens + sampling.max_tokens, dtype=np.int32)
        self._token_ids[: self.num_prompt_tokens] = prompt.token_ids

    @property
    def num_output_tokens(self) -> int:
        """Tokens generated so far."""
        return self.num_tokens - self.num_prompt_tokens

    @property
    def num_remaining_tokens(self) -> int:
        """Tokens that may still be generated."""
        return self.sampling.max_tokens - self.num_output_tokens

    @property
    def num_uncomputed_tokens(self) -> int:
        """Known tokens whose KV is still to be computed: 1 while it decodes."""
        return self.num_tokens - self.num_computed_tokens

    def tokens(self, start: int, stop: int) -> npt.NDArray[np.int32]:
        """Return known tokens [start, stop) as a view."""
        return self._token_ids[start:stop]

    def append(self, token_id: int) -> None:
        """Add one generated token."""
        self._token_ids[self.num_tokens] = token_id
        self.num_tokens += 1

    def resume_prompt(self, block_size: int) -> Prompt:
        """Return what to match at (re-)admission: the prompt, or after a preemption all known tokens.

        The answer belongs to the last scope, however long the others say they are.
        """
        if self.num_tokens == self.num_prompt_tokens:
            return self.prompt
        return Prompt(
            token_ids=self.tokens(0, self.num_tokens).copy(),
            block_hashes=b"",
            scopes=tidy_scopes(self.prompt.scopes, self.num_prompt_tokens // block_size),
            hash_epoch=self.prompt.hash_epoch,
        )

    def finish_reason(self, eos_token_ids: frozenset[int]) -> str | None:
        """Return `stop` or `length` if the last token ended it."""
        if not self.sampling.ignore_eos and int(self._token_ids[self.num_tokens - 1]) in eos_token_ids:
            return "stop"
        return "length" if self.num_remaining_tokens == 0 else None


def seed_sequence(base: int) -> itertools.count[int]:
    """Return seeds for requests that bring none: distinct, and reproducible from the worker's own."""
    return itertools.count(base & 0x7FFF_FFFF_FFFF_FFFF)
