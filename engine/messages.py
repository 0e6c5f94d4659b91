"""The values that cross the process border between gateway and worker, and their encoding (msgpack).

Both ends run the same release, so there is no version negotiation. Loads no torch.
"""

from __future__ import annotations

import msgspec

from engine.calls import Call, CancelCall, Reply
from engine.prompt import HashedPrompt


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True):
    """How tokens are chosen. Stop *strings* are the gateway's business: the engine sees tokens only."""

    max_tokens: int
    """Most tokens to generate; the gateway fills in the room left where a client gave none."""
    temperature: float = 1.0
    """0: greedy."""
    top_p: float = 1.0
    """Smallest set of tokens whose probability reaches this; 1: all."""
    top_k: int = 0
    """Only the k most likely tokens; 0: all."""
    seed: int | None = None
    """Draws depend on (seed, position) alone; None: the worker draws a seed."""
    ignore_eos: bool = False
    """Go on to max_tokens."""
    min_p: float = 0.0
    """Only tokens at least this likely, as a share of the likeliest; 0: all."""
    logit_bias: dict[int, float] = {}
    """Added to the logits of these tokens, before all else."""
    repetition_penalty: float = 1.0
    """Divides the logit of a token of prompt or answer that is positive, multiplies one that is not; 1: neither."""
    presence_penalty: float = 0.0
    """Taken from the logit of every token that was generated."""
    frequency_penalty: float = 0.0
    """Taken from it once more each time that the token was generated."""
    num_logprobs: int | None = None
    """So many of the likeliest tokens come with each token and its log probability; None: nothing of the kind."""
    grammar: str | None = None
    """What every answer must match, as llguidance writes it: a JSON object with a schema, or a Lark grammar; None: anything
    goes."""
    grammar_field: str = "grammar"
    """The client's name for it, for errors."""
    num_prompt_logprobs: int | None = None
    """The same for each token of the prompt but the first. Then nothing of the prompt is taken from the cache, and
    `max_tokens` may be 0."""
    n: int = 1
    """Answers to one prompt, which is computed once; answer `i` draws with a seed made of (seed, i)."""


class AddRequest(HashedPrompt, frozen=True, tag="add"):
    """Start one generation."""

    request_id: str
    """Unique for the life of the worker."""
    sampling: SamplingParams
    num_earlier_blocks: int = 0
    """Leading full blocks of the prompt that an earlier life of the worker had."""
    tenant: str = ""
    """For fair sharing; empty: nobody's."""


class AbortRequest(msgspec.Struct, frozen=True, tag="abort"):
    """Forget a request; unknown ids are ignored, for it may just have ended."""

    request_id: str
    index: int | None = None
    """Of the one answer to end, whose tokens were seen; None: of all."""


class GetSnapshot(msgspec.Struct, frozen=True, tag="snapshot"):
    """Ask for an `EngineSnapshot`."""

    call_id: int


ToWorker = AddRequest | AbortRequest | GetSnapshot | Call | CancelCall


class EngineReady(msgspec.Struct, frozen=True, tag="ready"):
    """The model is loaded and the pool allocated."""

    dtype: str
    device: str
    max_model_len: int
    """The limit in force."""
    block_size: int
    num_blocks: int
    hash_seed: int
    hash_epoch: int
    namespace_fields: dict[str, str]
    """All that changes KV bytes: model and weight digest, dtype, KV format, block size, RoPE scaling, adapter …
    The gateway adds the scope and makes the namespace."""
    eos_token_ids: list[int]
    kv_bytes_per_token: int
    warnings: list[str]
    """Said once at start, for people."""


class Admitted(msgspec.Struct, frozen=True, tag="admitted"):
    """A request got its blocks. Cached tokens are counted here, once, and never again."""

    request_id: str
    num_prompt_tokens: int
    num_cached_tokens: int
    reasons: dict[str, int]
    """Prompt blocks by reason."""
    reason: str
    """The one reason why no more was taken, as in the request's explanation."""
    num_common_tokens: int
    """Leading tokens that are cached in the nearest chain, whether or not they were taken from it."""
    saved_seconds: float
    """What computing the cached tokens would have added to steps, by the present `engine.step_cost.StepCost`."""
    evictions_ago: int | None = None
    """Blocks evicted after the first one that is missing; None: it was not evicted."""
    seconds_ago: float = 0.0
    """Since it got them: this is told when the step that it came into has been computed."""


class TokenLogprobs(msgspec.Struct, frozen=True, array_like=True):
    """How likely a token was to the model: natural logarithms, before bias, penalties and temperature."""

    logprob: float
    """Of the token."""
    top_ids: list[int]
    """The likeliest tokens, likeliest first."""
    top_logprobs: list[float]
    """Theirs."""
    rank: int
    """Of the token: 1 is the likeliest."""


class PromptLogprobs(msgspec.Struct, frozen=True, tag="prompt_logprobs"):
    """How likely tokens of a prompt were, in the order of the prompt, before its first answer begins."""

    request_id: str
    position: int
    """Of the first of these tokens, 1 or more. After a preemption they come again, from the start."""
    logprobs: list[TokenLogprobs]


class TokenOutput(msgspec.Struct, frozen=True, array_like=True):
    """New tokens of one answer."""

    request_id: str
    token_ids: list[int]
    finish_reason: str | None = None
    """`stop` (end-of-sequence token, which is the last of token_ids), `length`, or None while running."""
    index: int = 0
    """Which of the request's `n` answers; each ends on its own."""
    logprobs: list[TokenLogprobs] | None = None
    """One a token; None: not asked for."""


class StepOutputs(msgspec.Struct, frozen=True, tag="tokens"):
    """All new tokens of one engine step."""

    outputs: list[TokenOutput]


class RequestFailed(msgspec.Struct, frozen=True, tag="failed"):
    """One request ended with an error, all its answers included."""

    request_id: str
    message: str
    param: str | None
    """The field at fault; None: the engine's own fault."""
    retryable: bool = False
    """The same request may succeed later."""


class EngineSnapshot(msgspec.Struct, frozen=True, tag="snapshot"):
    """The engine between two steps, all numbers of one moment."""

    call_id: int
    blocks: dict[str, int]
    """`prefixcache.interface.CacheSnapshot`, without its counters."""
    counters: dict[str, int]
    """Monotonic since the worker's start."""
    running: dict[str, int]
    """Answers with blocks, by the lane that their prompt was computed in."""
    waiting: dict[str, int]
    """Requests without blocks, by lane; one whose grammar is being compiled counts as short, for nobody looked at it."""


class Heartbeat(msgspec.Struct, frozen=True, tag="heartbeat"):
    """The loop turns."""

    num_steps: int


class EngineFailed(msgspec.Struct, frozen=True, tag="engine_failed"):
    """The worker cannot start; it says why and exits. Not retried where `fatal`."""

    message: str
    fatal: bool


FromWorker = (
    EngineReady
    | Admitted
    | PromptLogprobs
    | StepOutputs
    | RequestFailed
    | EngineSnapshot
    | Reply
    | Heartbeat
    | EngineFailed
)

encode = msgspec.msgpack.Encoder().encode
decode_to_worker = msgspec.msgpack.Decoder(ToWorker).decode
decode_from_worker = msgspec.msgpack.Decoder(FromWorker).decode
