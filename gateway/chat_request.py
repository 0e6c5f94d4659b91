"""The body of `POST /v1/chat/completions`, checked by hand into plain values.

No pydantic here: this runs for every request, and its messages name the field, what came and what was wanted. Knows the
wire format only; whether a prompt fits the model is checked where its tokens are known.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

import orjson

from gateway import checks, sampling_fields
from gateway.chat_messages import parse_messages, parse_tools
from gateway.context.asked import ContextAsked
from gateway.conversation import Conversation
from gateway.errors import InvalidRequestError
from gateway.explain.request import DiagnosticsRequest
from gateway.structure.fields import structure_of
from gateway.structure.grammar import Structure
from gateway.tools.choice import ANY_CALLS, ToolChoice, read_openai

MAX_FIELDS = 1000
MAX_STOPS = 16
MAX_STOP_CHARS = 256
"""Held-back text and the work per token grow with it."""

_T = TypeVar("_T")

_MAX_INT64 = 2**63 - 1
MAX_LENGTH = 2**31 - 1
_MAX_TOP_K = 2**31 - 1
_MAX_VERSION_DIGITS = 10

_HONOURED = frozenset(
    {
        "model",
        "messages",
        "tools",
        "tool_choice",
        "parallel_tool_calls",
        "max_tokens",
        "max_completion_tokens",
        "temperature",
        "top_p",
        "top_k",
        "seed",
        "stop",
        "stream",
        "stream_options",
        "ignore_eos",
        "min_p",
        "logit_bias",
        "repetition_penalty",
        "presence_penalty",
        "frequency_penalty",
        "logprobs",
        "top_logprobs",
        "prompt_logprobs",
        "n",
        "prompt",
        "diagnostics",
        "prompt_cache_options",
        "continue_final_message",
        "chat_template_kwargs",
        "reasoning_effort",
        "response_format",
        "structured_outputs",
        "cache_salt",
        "prompt_cache_key",
        "user",
        "safety_identifier",
    }
)


@dataclass(frozen=True, slots=True)
class PromptReference:
    """A registered prompt that the client names in place of sending it."""

    prompt: str
    """Id or name."""
    version: int | None
    """None: the active one."""
    variables: Mapping[str, Any]
    """Of its slots."""


@dataclass(frozen=True, slots=True)
class RetentionHint:
    """A wish that a prompt stays cached."""

    is_of_head: bool
    """Only what stands before the first turn; else all of it."""
    seconds: float


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """What a client asked for; every value is in its bounds."""

    model: str
    conversation: Conversation
    max_tokens: int | None
    """None: the room that is left."""
    max_tokens_field: str
    """The name under which the client gave it, for errors."""
    temperature: float
    top_p: float
    top_k: int
    """0: all."""
    seed: int | None
    ignore_eos: bool
    stops: tuple[str, ...]
    stream: bool
    include_usage: bool
    prompt: PromptReference | None
    """Comes before the messages and tools of the body."""
    diagnostics: DiagnosticsRequest | None
    """What to tell about the cache in the answer."""
    unknown_fields: tuple[str, ...]
    """Ignored, and counted."""
    num_body_bytes: int
    """Size of the body, which decides where the prompt is prepared."""
    min_p: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    num_logprobs: int | None = None
    """So many of the likeliest tokens to tell of with each one; None: no log probabilities."""
    structure: Structure | None = None
    """What the answer must look like; None: like anything."""
    num_prompt_logprobs: int | None = None
    """The same of each token of the prompt but the first."""
    n: int = 1
    """Answers."""
    cache_salt: str | None = None
    """Asks for a cache of its own within the tenant's."""
    tool_choice: ToolChoice = ANY_CALLS
    shows_thoughts: bool = True
    """Whether the client wants to see what the model thought."""
    is_max_tokens_a_bound: bool = False
    """Whether more than there is room for means all the room; else it is an error."""
    retention: Sequence[RetentionHint] = ()
    context: ContextAsked = ContextAsked()  # noqa: RUF009 -- frozen
    """What is to be done to the conversation so that it stays short."""

    @property
    def reserved_tokens(self) -> int | None:
        """To keep free for the answer where a chat is cut; None: it is not said how many."""
        return None if self.is_max_tokens_a_bound else self.max_tokens


def parse_chat_request(body: bytes) -> ChatRequest:
    """Check a body.

    Raises: InvalidRequestError: what is wrong first.
    """
    fields = json_object(body)
    return request_of(fields, conversation_of, num_body_bytes=len(body))


def request_of(
    fields: Mapping[str, Any],
    read: Callable[[Mapping[str, Any]], Conversation],
    *,
    num_body_bytes: int,
    scores_prompt: bool = False,
) -> ChatRequest:
    """Check the fields of a body beside what is said in it, which `read` gives.

    A prompt that is scored, whether by `prompt_logprobs` or otherwise, may be all that is wanted: no token of an answer.

    Raises: InvalidRequestError: what is wrong first.
    """
    _refuse_unsupported(fields)
    if "model" not in fields:
        raise InvalidRequestError("model: missing, wanted the id of the served model", param="model")
    least = 0 if scores_prompt or "prompt_logprobs" in fields else 1
    max_tokens_field, max_tokens = _max_tokens(fields, least)
    _optional(fields, "continue_final_message", None, checks.boolean)
    temperature = _optional(fields, "temperature", 1.0, lambda f, v: checks.number(f, v, low=0, high=2))
    top_p = _optional(fields, "top_p", 1.0, lambda f, v: checks.number(f, v, low=0, high=1))
    stream = _optional(fields, "stream", False, checks.boolean)
    return ChatRequest(
        model=checks.text("model", fields["model"]),
        conversation=read(fields),
        max_tokens=max_tokens,
        max_tokens_field=max_tokens_field,
        # The smallest nucleus is the likeliest token alone, which is greedy decoding.
        temperature=0.0 if top_p == 0 else temperature,
        top_p=top_p or 1.0,
        top_k=_optional(fields, "top_k", 0, _top_k),
        seed=_optional(fields, "seed", None, _seed),
        ignore_eos=_optional(fields, "ignore_eos", False, checks.boolean),
        stops=_optional(fields, "stop", (), check_stops),
        stream=stream,
        include_usage=_include_usage(fields, stream=stream),
        prompt=_optional(fields, "prompt", None, _prompt),
        diagnostics=_diagnostics(fields),
        unknown_fields=tuple(name for name in fields if name not in _HONOURED and name not in _NEUTRAL),
        num_body_bytes=num_body_bytes,
        min_p=_optional(fields, "min_p", 0.0, sampling_fields.share),
        logit_bias=_optional(fields, "logit_bias", {}, sampling_fields.logit_bias),
        repetition_penalty=_optional(fields, "repetition_penalty", 1.0, sampling_fields.repetition_penalty),
        presence_penalty=_optional(fields, "presence_penalty", 0.0, sampling_fields.penalty),
        frequency_penalty=_optional(fields, "frequency_penalty", 0.0, sampling_fields.penalty),
        num_logprobs=sampling_fields.num_logprobs(fields),
        structure=structure_of(fields),
        num_prompt_logprobs=sampling_fields.num_prompt_logprobs(fields, stream=stream),
        n=_optional(fields, "n", 1, sampling_fields.num_answers),
        cache_salt=_optional(fields, "cache_salt", None, checks.text),
        tool_choice=read_openai(fields),
    )


def conversation_of(fields: Mapping[str, Any]) -> Conversation:
    """Check the messages and tools of a body, and keep all its other fields.

    Raises: InvalidRequestError: the first thing that is wrong.
    """
    if "messages" not in fields:
        raise InvalidRequestError("messages: missing, wanted an array of messages", param="messages")
    tools = parse_tools(fields.get("tools"))
    apart = ("messages", "tools") if tools else ("messages",)  # an empty list of tools is kept as it came
    rest = {name: value for name, value in fields.items() if name not in apart}
    return Conversation(parse_messages(fields["messages"]), tools, rest)


def json_object(body: bytes) -> dict[str, Any]:
    """Read a body whose fields may be null, which counts as absent.

    Raises: InvalidRequestError: it is empty, not JSON, not an object, or has too many fields.
    """
    if not body:
        raise InvalidRequestError("the body is empty, wanted a JSON object")
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise InvalidRequestError(f"the body is not valid JSON in UTF-8: {error}") from error
    if not isinstance(value, dict):
        raise InvalidRequestError(f"the body is a JSON {_json_kind(value)}, wanted an object")
    if len(value) > MAX_FIELDS:
        raise InvalidRequestError(f"the body is an object with {len(value)} fields, wanted at most {MAX_FIELDS}")
    # A null field counts as absent: SDKs and proxies print the fields they leave unset that way.
    return {name: entry for name, entry in value.items() if entry is not None}


def _json_kind(value: object) -> str:
    kinds: Mapping[type, str] = {list: "array", str: "string", bool: "boolean", type(None): "null"}
    return kinds.get(type(value), "number")


def _optional(fields: Mapping[str, Any], name: str, default: _T, check: Callable[[str, Any], _T]) -> _T:
    return check(name, fields[name]) if name in fields else default


def _max_tokens(fields: Mapping[str, Any], least: int) -> tuple[str, int | None]:
    """Read either name; the newer one wins where both are given."""
    for name in ("max_completion_tokens", "max_tokens"):
        if name in fields:
            return name, checks.integer(name, fields[name], low=least, high=MAX_LENGTH)
    return "max_tokens", None


def _top_k(field: str, value: object) -> int:
    """-1 is vLLM's way to say all."""
    return max(0, checks.integer(field, value, low=-1, high=_MAX_TOP_K))


def _seed(field: str, value: object) -> int:
    """Any 64-bit number is a seed; the engine gets it without a sign."""
    return checks.integer(field, value, low=-_MAX_INT64 - 1, high=_MAX_INT64) & _MAX_INT64


def check_stops(field: str, value: object) -> tuple[str, ...]:
    """Accept one stop string or several."""
    wanted = f"a non-empty string of at most {MAX_STOP_CHARS} characters"
    if isinstance(value, str):
        named = [(field, cast("object", value))]
    elif isinstance(value, list):
        entries = checks.sequence(field, value, most=MAX_STOPS)
        named = [(f"{field}[{index}]", entry) for index, entry in enumerate(entries)]
    else:
        checks.refuse(field, value, f"a string or an array of at most {MAX_STOPS} strings")
    for name, entry in named:
        if not isinstance(entry, str) or not 0 < len(entry) <= MAX_STOP_CHARS:
            checks.refuse(name, entry, wanted)
    return tuple(dict.fromkeys(str(entry) for _, entry in named))


def _prompt(field: str, value: object) -> PromptReference:
    given = {name: entry for name, entry in checks.mapping(field, value).items() if entry is not None}
    for name in given:
        if name not in ("id", "version", "variables"):
            raise InvalidRequestError(
                f"{field}.{name}: unknown, wanted id, version or variables", param=f"{field}.{name}"
            )
    version = given.get("version")
    return PromptReference(
        checks.text(f"{field}.id", given.get("id")),
        None if version is None else _version(f"{field}.version", version),
        checks.mapping(f"{field}.variables", given.get("variables", {})),
    )


def _diagnostics(fields: Mapping[str, Any]) -> DiagnosticsRequest | None:
    """Read both providers' ways to ask; other options of theirs have no meaning here."""
    anthropic = checks.mapping("diagnostics", fields["diagnostics"]) if "diagnostics" in fields else None
    openai = checks.mapping("prompt_cache_options", fields.get("prompt_cache_options", {}))
    baseline = _id("prompt_cache_options.comparison_response_id", openai.get("comparison_response_id"))
    if anthropic is None and baseline is None:
        return None
    previous = _id("diagnostics.previous_message_id", (anthropic or {}).get("previous_message_id"))
    return DiagnosticsRequest(anthropic is not None, previous, baseline)


def _id(field: str, value: object) -> str | None:
    return None if value is None else checks.text(field, value)


def _version(field: str, value: object) -> int:
    """Read a number, or its digits as OpenAI's clients send them."""
    if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) < _MAX_VERSION_DIGITS:
        return int(value)
    return checks.integer(field, value, low=1, high=MAX_LENGTH)


def _include_usage(fields: Mapping[str, Any], *, stream: bool) -> bool:
    if "stream_options" not in fields:
        return False
    options = checks.mapping("stream_options", fields["stream_options"])
    if not stream:
        raise InvalidRequestError(
            "stream_options: got an object without stream, wanted it only where stream is true", param="stream_options"
        )
    wanted = options.get("include_usage")
    return False if wanted is None else checks.boolean("stream_options.include_usage", wanted)


_NEUTRAL: Mapping[str, Callable[[Any], bool]] = {
    "functions": lambda value: value == [],
    "function_call": lambda value: value == "none",
    "modalities": lambda value: value == ["text"],
    "audio": lambda value: value == {},
    "store": lambda value: value is False,
    "web_search_options": lambda _: False,
}
"""Fields that would change the answer and are not supported yet: only the value that changes nothing passes, for an
answer that silently lacks what was asked for is worse than a refusal."""


def _refuse_unsupported(fields: Mapping[str, Any]) -> None:
    for name, is_neutral in _NEUTRAL.items():
        if name in fields and not is_neutral(fields[name]):
            checks.refuse(name, fields[name], "it left out: this server does not support other values")
