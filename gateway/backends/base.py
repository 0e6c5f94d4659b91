"""The seam between the HTTP side and whatever generates tokens.

The HTTP side renders, tokenizes and hashes, hands over a `GenerationRequest`, and gets a `Generation` back at
*admission*, when it is known how much of the prompt was cached. Knows nothing of processes or sockets.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from gateway.backends.control import CacheControl, ExplainedRequest, HashedPrompt
from prefixcache.interface import PrefixCacheConfig


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are chosen, already checked and complete."""

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None
    ignore_eos: bool = False
    min_p: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    num_logprobs: int | None = None
    """So many of the likeliest tokens to tell of with each one; None: no log probabilities."""
    grammar: str | None = None
    """What the answer must match, as llguidance writes it (`gateway.structure`); None: anything goes."""
    grammar_field: str = "grammar"
    """The client's name for it, for errors."""
    num_prompt_logprobs: int | None = None
    """The same of each token of the prompt but the first, of which then nothing is reused. `max_tokens` may be 0."""
    n: int = 1
    """Answers to the one prompt; each draws for itself, with the same seed always the same."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class GenerationRequest(HashedPrompt):
    """One prompt to go on from."""

    request_id: str
    """Of the completion, unique; `blocks_of` knows it by this."""
    sampling: Sampling
    tenant: str = ""


@dataclass(frozen=True, slots=True)
class Admission:
    """What was reused, counted once."""

    num_prompt_tokens: int
    num_cached_tokens: int
    reasons: Mapping[str, int]
    """Prompt blocks by reason (`prefixcache.interface.Reason`)."""
    reason: str
    """The one reason why no more was taken (`prefixcache.reasons.main_reason`); it tells nothing of other tenants."""
    num_common_tokens: int = 0
    """Leading tokens that are cached in the nearest chain, whether or not they were taken from it."""
    saved_seconds: float = 0.0
    """For how long the engine would have computed the cached tokens, as it estimates."""
    evictions_ago: int | None = None
    """Blocks evicted after the first one that is missing; None: it was not evicted. For the operator."""
    seconds_ago: float = 0.0
    """Between the admission and the news of it, in which the prompt was computed."""


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """How likely a token was to the model: natural logarithms."""

    logprob: float
    likeliest: Sequence[tuple[int, float]]
    """Tokens and theirs, likeliest first."""
    rank: int
    """1: no token was likelier."""


@dataclass(frozen=True, slots=True)
class TokenBatch:
    """Tokens of one answer that arrived together."""

    token_ids: Sequence[int]
    finish_reason: str | None
    """`stop`: the model ended, and the last token is its end-of-sequence token. `length`. None: there is more."""
    logprobs: Sequence[TokenLogprobs] | None = None
    """One a token; None: not asked for."""
    choice: int = 0
    """Which of the answers."""


class Generation(Protocol):
    """One running generation of one answer or several. Iterate it once; leave early only through `abort`."""

    @property
    def admission(self) -> Admission:
        """What was reused."""
        ...

    @property
    def prompt_logprobs(self) -> Sequence[Sequence[TokenLogprobs]]:
        """By prompt, those of its tokens but the first, all there when the first batch is; empty: not asked for."""
        ...

    def __aiter__(self) -> AsyncIterator[TokenBatch]:
        """Yield batches until each answer had one with a finish_reason, or was ended.

        Raises: BackendFailedError: the engine died; RequestRejectedError: this request failed in the engine.
        """
        ...

    def end(self, choice: int) -> None:
        """Stop one answer, of which at least one batch came; the others go on."""
        ...

    def abort(self) -> None:
        """Stop all of it and free its blocks; safe at any time and more than once."""
        ...


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What the HTTP side must know of the model that is served."""

    max_model_len: int
    block_size: int
    hash_seed: int
    hash_epoch: int
    namespace_fields: Mapping[str, str]
    eos_token_ids: frozenset[int]
    cache: PrefixCacheConfig | None = None
    """What its prefix cache is built with; None: nobody knows."""
    details: Mapping[str, str | int] = field(default_factory=dict)
    """For people: dtype, device, number of blocks …"""


@dataclass(frozen=True, slots=True)
class BackendSnapshot:
    """Engine state of one moment."""

    blocks: Mapping[str, int]
    """As in `prefixcache.interface.CacheSnapshot`: total_blocks, free_blocks, cached_blocks, active_blocks …"""
    counters: Mapping[str, int]
    """Monotonic since the engine's start."""
    running: Mapping[str, int]
    """Answers that are computed, by the lane of their prompt: `short` and `long`."""
    waiting: Mapping[str, int]
    """Requests that wait for blocks, likewise."""

    @property
    def num_running(self) -> int:
        """Of both lanes."""
        return sum(self.running.values())

    @property
    def num_waiting(self) -> int:
        """Of both lanes."""
        return sum(self.waiting.values())


class Explainer(Protocol):
    """Whoever knows what was cached for a request."""

    def model_info(self) -> ModelInfo:
        """Facts of the running model.

        Raises: BackendUnavailableError: not ready.
        """
        ...

    async def explain_request(self, request_id: str, *, reveal_other_scopes: bool = False) -> ExplainedRequest | None:
        """See `CacheControl`."""
        ...


class Backend(CacheControl, Protocol):
    """Something that generates. `start` returns at once; `ready()` tells when it serves."""

    async def start(self) -> None:
        """Begin to come up, in the background."""
        ...

    async def stop(self) -> None:
        """End every generation with an error, release everything."""
        ...

    def ready(self) -> bool:
        """True while requests are served."""
        ...

    def state(self) -> str:
        """One word or a short sentence for people: `starting`, `ready`, `restarting: …`, `failed: …`."""
        ...

    def model_info(self) -> ModelInfo:
        """Facts of the running model.

        Raises: BackendUnavailableError: not ready.
        """
        ...

    async def generate(self, request: GenerationRequest) -> Generation:
        """Wait for admission and return the running generation. Cancelling the wait aborts the request.

        Raises: BackendUnavailableError: not ready; BackendFailedError: the engine died while it waited;
        RequestRejectedError: this request can not be served.
        """
        ...

    async def snapshot(self) -> BackendSnapshot:
        """Ask the engine.

        Raises: BackendUnavailableError: not ready.
        """
        ...


class BackendError(Exception):
    """Base of what a backend raises."""


class BackendUnavailableError(BackendError):
    """Nothing serves now; try again after `retry_after_seconds`. Nothing was sent."""

    def __init__(self, message: str, *, retry_after_seconds: int = 5) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds


class BackendFailedError(BackendUnavailableError):
    """The engine died while it worked on this request."""


class BackendOverloadedError(BackendUnavailableError):
    """The engine had too little memory for this request; it may fit later."""


class RequestRejectedError(BackendError):
    """This request can not be served; `param` names the field at fault, None: not the client's fault."""

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param
