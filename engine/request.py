"""One generation as the scheduler sees it. Loads no torch."""

from __future__ import annotations

import itertools
import struct
from enum import Enum, StrEnum, auto
from hashlib import blake2b

import numpy as np
import numpy.typing as npt

from engine.batch import ScheduledRequest
from engine.grammars import Grammar
from engine.logit_edits import edits_of
from engine.messages import SamplingParams
from prefixcache import BlockTable
from prefixcache.hashing import tidy_scopes
from prefixcache.interface import Prompt


class RequestStatus(Enum):
    """Where a request stands; whether it prefills or decodes follows from `num_computed_tokens`."""

    UNFORKED = auto()  # a sibling computes its prompt
    WAITING = auto()
    RUNNING = auto()
    FINISHED = auto()


class Lane(StrEnum):
    """Where a prompt waits and prefills, see `engine.lanes`."""

    SHORT = auto()
    LONG = auto()


class Request:
    """A prompt, the tokens generated so far, and how many of both have their KV in the cache.

    A client's request with `n` answers is n of these: the first one computes the prompt and the others, its `unforked`,
    leave from there with what it has computed. From then on each is on its own. Only the scheduler writes to it.
    """

    def __init__(
        self, request_id: str, prompt: Prompt, sampling: SamplingParams, *, seed: int, tenant: str = "", index: int = 0
    ) -> None:
        self.request_id = request_id
        """The client's, the same for all its answers."""
        self.index = index
        self.key = f"{request_id}/{index}" if index else request_id
        """Unique; what the model runner knows it by."""
        self.unforked: list[Request] = []
        """Answers that wait for this one's prompt."""
        self.prompt = prompt
        self.sampling = sampling
        self.seed = seed
        self.tenant = tenant
        self.status = RequestStatus.WAITING
        self.arrival = 0
        """Requests that came before."""
        self.lane = Lane.SHORT
        self.awaited_tokens = 0
        """Of its owner, while it waits for a prefix that another request computes."""
        self.next_block_hash = b""
        """Of the first full block that was not cached, while it waits in the long lane."""
        self.num_bypasses = 0
        """Younger requests that got blocks while it waited for some."""
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
        self.is_scored = sampling.num_prompt_logprobs is None or index > 0 or self.num_prompt_tokens == 1
        """Whether all is told of its prompt's log probabilities that is wanted."""
        self._token_ids = np.empty(self.num_prompt_tokens + sampling.max_tokens, dtype=np.int32)
        self._token_ids[: self.num_prompt_tokens] = prompt.token_ids
        self._edits = edits_of(sampling, prompt.token_ids)
        self.grammar: Grammar | None = None
        """What its answer must match, as far as it has come."""

    @property
    def num_sequences(self) -> int:
        """Itself and the answers that are still to fork from it."""
        return 1 + len(self.unforked)

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
        if self._edits is not None:
            self._edits.append(token_id)

    def follow_grammar(self, token_id: int | None) -> str | None:
        """Enter a sampled token, if there is one, into the grammar, if there is one; return why that cannot be."""
        if token_id is None or self.grammar is None or (why := self.grammar.accept(token_id)) is None:
            return None
        return f"{self.sampling.grammar_field}: {why}"

    def part(self, num_new_tokens: int) -> ScheduledRequest:
        """Return the next tokens as a part of a step."""
        assert self.table is not None
        start, stop = self.num_computed_tokens, self.num_computed_tokens + num_new_tokens
        return ScheduledRequest(
            request_id=self.key,
            token_ids=self.tokens(start, stop),
            num_computed_tokens=start,
            block_ids=self.table.block_ids,
            sampling=self.sampling,
            seed=self.seed,
            sample=stop == self.num_tokens and self.sampling.max_tokens > 0,
            edits=self._edits,
            grammar=self.grammar,
            targets=None if self.is_scored else self.tokens(start + 1, min(stop + 1, self.num_prompt_tokens)),
        )

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
        may_end = not self.sampling.ignore_eos or self.grammar is not None  # nothing comes after the end of a grammar
        if may_end and int(self._token_ids[self.num_tokens - 1]) in eos_token_ids:
            return "stop"
        return "length" if self.num_remaining_tokens == 0 else None


def with_siblings(first: Request) -> list[Request]:
    """Return a request and its other n - 1 answers, which it is to fork."""
    first.unforked = [
        Request(
            first.request_id,
            first.prompt,
            first.sampling,
            seed=seed_of_answer(first.seed, index),
            tenant=first.tenant,
            index=index,
        )
        for index in range(1, first.sampling.n)
    ]
    for sibling in first.unforked:
        sibling.status = RequestStatus.UNFORKED
        sibling.grammar = first.grammar and first.grammar.fork()
        sibling.was_admitted = True  # the prompt is counted once, with the first answer
    return [first, *first.unforked]


def seed_of_answer(seed: int, index: int) -> int:
    """Return the seed of a request's answer `index`: its own for the first, so that n = 1 draws the same tokens."""
    if index == 0:
        return seed
    digest = blake2b(struct.pack("<QQ", seed & 0xFFFF_FFFF_FFFF_FFFF, index), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def seed_sequence(base: int) -> itertools.count[int]:
    """Return seeds for requests that bring none: distinct, and reproducible from the worker's own."""
    return itertools.count(base & 0x7FFF_FFFF_FFFF_FFFF)
