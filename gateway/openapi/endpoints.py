"""The operations that SDKs, probes and scrapers know."""

from __future__ import annotations

from dataclasses import replace

from gateway.backends.base import (
    BackendFailedError,
    BackendOverloadedError,
    BackendUnavailableError,
    RequestRejectedError,
)
from gateway.errors import (
    ContextLengthError,
    InvalidRequestError,
    ModelNotAllowedError,
    ModelNotFoundError,
    NotFoundError,
    RateLimitError,
    UpstreamFailedError,
    UpstreamTimeoutError,
    UpstreamUnreachableError,
)
from gateway.openapi.operation import Access, Given, Operation
from gateway.openapi.schema import OBJECT, TEXT, ref

_MODEL = (ModelNotFoundError, ModelNotAllowedError)
_PROMPT = (*_MODEL, NotFoundError, InvalidRequestError, ContextLengthError, BackendUnavailableError)
_GENERATION = (
    *_PROMPT,
    RateLimitError,
    BackendFailedError,
    BackendOverloadedError,
    RequestRejectedError,
)

_ANSWER_HEADERS = (
    "x-prefixgate-cache",
    *(f"x-ratelimit-{what}-{of}" for of in ("requests", "tokens") for what in ("limit", "remaining", "reset")),
)


def _generating(path: str, summary: str, names: tuple[str, str, str]) -> Operation:
    body, whole, piece = names
    given = Given(ref(whole), stream=piece, headers=_ANSWER_HEADERS)
    return Operation("POST", path, summary, Access.KEY, {200: given}, _GENERATION, ref(body))


def _asking(path: str, summary: str, body: str, answer: str) -> Operation:
    return Operation("POST", path, summary, Access.KEY, {200: Given(ref(answer))}, _PROMPT, ref(body))


def _looking(path: str, summary: str, answer: str, *errors: type[Exception]) -> Operation:
    return Operation("GET", path, summary, Access.KEY, {200: Given(ref(answer))}, errors)


ENDPOINTS: tuple[Operation, ...] = (
    _generating("/v1/chat/completions", "Answer a chat", ("ChatRequest", "ChatCompletion", "ChatCompletionChunk")),
    _generating("/v1/completions", "Go on from a prompt", ("CompletionRequest", "Completion", "Completion")),
    _generating("/v1/messages", "Answer a chat in Anthropic's shapes", ("MessagesRequest", "Message", "MessageEvent")),
    _generating(
        "/v1/responses", "Answer a chat that is sent as items", ("ResponsesRequest", "Response", "ResponseEvent")
    ),
    _asking("/v1/messages/count_tokens", "Count what a message would be sent with", "CountTokensRequest", "TokenCount"),
    _asking("/tokenize", "Give the tokens of a text or a chat", "TokenizeRequest", "Tokens"),
    _asking("/detokenize", "Give the text of tokens", "DetokenizeRequest", "Text"),
    _looking("/v1/models", "List the models", "ModelList"),
    _looking("/v1/models/{model_id}", "Describe one model", "Model", *_MODEL),
    Operation("GET", "/health", "Say that the process lives", Access.EVERYBODY, {200: Given(ref("Status"))}),
    Operation(
        "GET",
        "/ready",
        "Say whether chats are answered now",
        Access.EVERYBODY,
        {200: Given(ref("Status")), 503: Given(ref("Status"))},
    ),
    Operation("GET", "/version", "Say what runs", Access.EVERYBODY, {200: Given(ref("Version"))}),
    Operation("GET", "/metrics", "Metrics for Prometheus", Access.EVERYBODY, {200: Given(TEXT, "text/plain")}),
    Operation("GET", "/openapi.json", "This description", Access.EVERYBODY, {200: Given(OBJECT)}),
)

_UPSTREAM = (UpstreamUnreachableError, UpstreamFailedError, UpstreamTimeoutError)
_EMBEDDINGS = _asking("/v1/embeddings", "Give the vectors of texts", "EmbeddingsRequest", "Embeddings")
PROXIED: tuple[Operation, ...] = tuple(
    replace(one, errors=(*one.errors, *_UPSTREAM), passes_on=True) if one.access is Access.KEY else one
    for one in (*ENDPOINTS, _EMBEDDINGS)
)
"""The same where an upstream answers."""
