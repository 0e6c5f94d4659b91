"""A model runner without a model, whose answers betray every wrong block.

The "KV" of a token is a running digest over all tokens before it, read from the previous *slot* through the block
table, as attention would. The sampled token depends on the digest of the last one. So a stale block, a missing copy,
a block shared too early or a lost token changes the answer, and `expected_tokens` says what it should have been.
A request that names a seed is answered by (digest, seed of the answer), so that the answers of `n` > 1 go apart.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence

import msgspec
import numpy as np

from engine.batch import ScheduledRequest, SchedulerOutput, StepOutput
from engine.messages import TokenLogprobs
from engine.request import seed_of_answer

VOCAB_SIZE = 1000
EOS_TOKEN_ID = 0
POISON = np.uint64(0xDEAD_BEEF_DEAD_BEEF)
_MULTIPLIER = 0x9E37_79B9_7F4A_7C15
_MASK = (1 << 64) - 1


def _mix(digest: int, token_id: int) -> int:
    mixed = ((digest ^ (token_id + 1)) * _MULTIPLIER) & _MASK
    return mixed ^ (mixed >> 29)


def _token(digest: int, seed: int) -> int:
    return 1 + (_mix(digest, seed) if seed else digest) % (VOCAB_SIZE - 1)


def expected_tokens(prompt: Sequence[int], num_tokens: int, *, seed: int | None = None, index: int = 0) -> list[int]:
    """The answer to a prompt, computed without any cache; answer `index` of a request with a seed."""
    seed = 0 if seed is None else seed_of_answer(seed, index)
    digest = 0
    for token_id in prompt:
        digest = _mix(digest, int(token_id))
    answer = []
    for _ in range(num_tokens):
        answer.append(_token(digest, seed))
        digest = _mix(digest, answer[-1])
    return answer


def expected_logprobs(token: int, num: int) -> TokenLogprobs:
    """What it says of a token: a number that no other has."""
    return TokenLogprobs(-token / 8, list(range(num)), [-float(rank) for rank in range(num)], 1 + token % 5)


def expected_prompt_logprobs(prompt: Sequence[int], num: int) -> list[TokenLogprobs]:
    """What it says of a prompt's tokens but the first, each by the digest of those before it."""
    digest, said = 0, []
    for token_id, following in itertools.pairwise(prompt):
        digest = _mix(digest, int(token_id))
        said.append(_scored(digest, int(following), num))
    return said


def _scored(digest: int, following: int, num: int) -> TokenLogprobs:
    return msgspec.structs.replace(expected_logprobs(following, num), logprob=-float(digest % 997))


class ChainRunner:
    """See the module."""

    def __init__(
        self,
        *,
        num_blocks: int = 64,
        block_size: int = 8,
        max_model_len: int = 4096,
        eos_token_ids: frozenset[int] = frozenset({EOS_TOKEN_ID}),
        step_seconds: float = 0.0,
    ) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.max_model_len = max_model_len
        self.eos_token_ids = eos_token_ids
        self.vocab_size = VOCAB_SIZE
        self.step_seconds = step_seconds
        self.slots = np.full(num_blocks * block_size, POISON, dtype=np.uint64)
        self.steps: list[SchedulerOutput] = []
        self.fail_next: Exception | None = None

    def execute(self, output: SchedulerOutput) -> StepOutput:
        """Copy, then extend each request's digests."""
        if self.step_seconds:
            time.sleep(self.step_seconds)
        if self.fail_next is not None:
            error, self.fail_next = self.fail_next, None
            raise error
        self.steps.append(output)
        for copy in output.copies:
            src, dst = copy.src * self.block_size, copy.dst * self.block_size
            self.slots[dst : dst + copy.num_tokens] = self.slots[src : src + copy.num_tokens]
        sampled, logprobs, prompts = {}, {}, {}
        for request in output.requests:
            digest = self._extend(request)
            if request.targets is not None:
                num = request.sampling.num_prompt_logprobs or 0
                digests = [
                    int(self.slots[self._slot(request, request.num_computed_tokens + i)])
                    for i in range(len(request.targets))
                ]
                prompts[request.request_id] = [
                    _scored(*pair, num) for pair in zip(digests, request.targets.tolist(), strict=True)
                ]
            if request.sample:
                seed = 0 if request.sampling.seed is None else request.seed
                sampled[request.request_id] = token = _token(digest, seed)
                if (num := request.sampling.num_logprobs) is not None:
                    logprobs[request.request_id] = expected_logprobs(token, num)
        return StepOutput(sampled, logprobs=logprobs, prompt_logprobs=prompts)

    def _extend(self, request: ScheduledRequest) -> int:
        position = request.num_computed_tokens
        digest = int(self.slots[self._slot(request, position - 1)]) if position else 0
        for offset, token_id in enumerate(request.token_ids):
            digest = _mix(digest, int(token_id))
            self.slots[self._slot(request, position + offset)] = digest
        return digest

    def _slot(self, request: ScheduledRequest, position: int) -> int:
        return request.block_ids[position // self.block_size] * self.block_size + position % self.block_size
