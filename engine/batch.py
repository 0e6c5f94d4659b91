"""One engine step as values: what the scheduler decided and what the model answered. Loads no torch."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from engine.grammars import Grammar
from engine.logit_edits import LogitEdits
from engine.messages import SamplingParams, TokenLogprobs
from prefixcache.interface import CopyOp

MAX_SCORED_TOKENS = 128
"""Of a prompt whose log probabilities are wanted, in one step: the logits of each take a row of the whole vocabulary."""


@dataclass(frozen=True, slots=True, eq=False)
class ScheduledRequest:
    """The part of one request that runs in this step: tokens [num_computed_tokens, + num_new_tokens)."""

    request_id: str
    """Of one answer: `Request.key`."""
    token_ids: npt.NDArray[np.int32]
    """[num_new_tokens], the tokens whose KV this step computes."""
    num_computed_tokens: int
    """Tokens whose KV is in the cache before this step: position of the first new token."""
    block_ids: list[int]
    """The block table; covers num_computed_tokens + num_new_tokens."""
    sampling: SamplingParams
    seed: int
    """Draws depend on (seed, position) alone."""
    sample: bool
    """True: the last new token is the last known one, so its logits give the next token."""
    edits: LogitEdits | None = None
    """Of its logits; None: they stay as they are."""
    grammar: Grammar | None = None
    """Which tokens may come next; None: all."""
    targets: npt.NDArray[np.int32] | None = None
    """[num_scored] the prompt's tokens behind its first new ones, whose log probabilities are wanted; None: nobody asks."""

    @property
    def num_new_tokens(self) -> int:
        """Tokens of this request in this step."""
        return len(self.token_ids)


@dataclass(frozen=True, slots=True)
class SchedulerOutput:
    """One step for the model runner."""

    requests: list[ScheduledRequest] = field(default_factory=list)
    copies: list[CopyOp] = field(default_factory=list)
    """To perform before the forward pass, in order."""
    ended: list[str] = field(default_factory=list)
    """Requests that lost their blocks since the last step: finished, aborted or preempted. What a runner keeps for them
    can go, before the copies are performed."""


@dataclass(frozen=True, slots=True)
class StepOutput:
    """What a step produced."""

    token_ids: dict[str, int]
    """request_id -> sampled token, for the requests with `sample`."""
    failed: dict[str, str] = field(default_factory=dict)
    """request_id -> why its numbers cannot be used (for example a non-finite logit)."""
    logprobs: dict[str, TokenLogprobs] = field(default_factory=dict)
    """request_id -> how likely its token was, for the requests that ask."""
    prompt_logprobs: dict[str, list[TokenLogprobs]] = field(default_factory=dict)
    """request_id -> how likely its `targets` were, one a token."""
