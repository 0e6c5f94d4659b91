"""Every kind of error and every limit has its row here: a new one without a row fails."""

from __future__ import annotations

import importlib
from pathlib import Path

import httpx
import pytest

from gateway import errors
from gateway.backends import base
from tests.gateway.support.fake_backend import FakeBackend
from tests.gateway.test_bad_bodies import COMPLETIONS, MESSAGES
from tests.gateway.test_bad_input import BODIES, FIELDS, chat
from tests.gateway.test_chat_fields import REFUSED

CHAT, ANTHROPIC = "/v1/chat/completions", "/v1/messages"
INVALID, SERVER = "invalid_request_error", "server_error"

ERRORS: dict[type[Exception], tuple[int, str, str | None, str]] = {
    # class: status, type, code, Anthropic's type
    errors.InvalidRequestError: (400, INVALID, None, INVALID),
    errors.ContextLengthError: (400, INVALID, "context_length_exceeded", INVALID),
    errors.AuthenticationError: (401, "authentication_error", "invalid_api_key", "authentication_error"),
    errors.AdminDisabledError: (403, "permission_error", "admin_disabled", "permission_error"),
    errors.CrossSiteError: (403, "permission_error", "cross_site", "permission_error"),
    errors.ModelNotAllowedError: (403, "permission_error", "model_not_allowed", "permission_error"),
    errors.ModelNotFoundError: (404, INVALID, "model_not_found", "not_found_error"),
    errors.NotFoundError: (404, INVALID, "not_found", "not_found_error"),
    errors.ConflictError: (409, INVALID, "conflict", INVALID),
    errors.BodyTooLargeError: (413, INVALID, "request_too_large", "request_too_large"),
    errors.RateLimitError: (429, "rate_limit_error", "rate_limit_exceeded", "rate_limit_error"),
    errors.StorageUnavailableError: (503, SERVER, "database_unavailable", "api_error"),
    errors.TooManyListenersError: (503, SERVER, "too_many_listeners", "api_error"),
    errors.UpstreamUnreachableError: (503, SERVER, "upstream_unreachable", "api_error"),
    errors.UpstreamFailedError: (502, SERVER, "upstream_failed", "api_error"),
    errors.UpstreamTimeoutError: (504, SERVER, "upstream_timeout", "api_error"),
    base.RequestRejectedError: (500, SERVER, "engine_error", "api_error"),  # it names no field: not the client's fault
    base.BackendUnavailableError: (503, SERVER, "engine_unavailable", "api_error"),
    base.BackendFailedError: (503, SERVER, "engine_failed", "api_error"),
    base.BackendOverloadedError: (503, SERVER, "engine_overloaded", "overloaded_error"),
    ZeroDivisionError: (500, SERVER, "internal_error", "api_error"),  # whatever nobody foresaw
}
PAGES = ("api.md", "upstreams.md")

LIMITS: dict[str, dict[str, str]] = {
    # module: limit -> row of the tables of wrong input that goes beyond it
    "chat_request": {
        "MAX_FIELDS": "many-fields",
        "MAX_LENGTH": "max-tokens-2-to-40",
        "MAX_STOPS": "stop-too-many",
        "MAX_STOP_CHARS": "stop-long",
    },
    "chat_messages": {
        "MAX_MESSAGES": "too-many-messages",
        "MAX_PARTS": "parts-too-many",
        "MAX_TOOLS": "tools-too-many",
        "MAX_TOOL_CALLS": "tool-calls-too-many",
        "MAX_NAME_CHARS": "name-long",
    },
    "checks": {"MAX_DEPTH": "message-deep"},
    "plain_prompt": {"MAX_TOKENS": "prompt-tokens-too-many"},
    "sampling_fields": {
        "MAX_ANSWERS": "n-many",
        "MAX_BIASES": "logit-bias-many",
        "MAX_BIAS": "logit-bias-high",
        "MAX_TOP_LOGPROBS": "top-logprobs-high",
        "MAX_PENALTY": "presence-penalty-high",
        "MIN_REPETITION_PENALTY": "repetition-penalty-zero",
        "MAX_REPETITION_PENALTY": "repetition-penalty-high",
    },
}

CALL = {"id": "1", "function": {"name": "f", "arguments": "{}"}}
TOO_MANY: dict[str, tuple[dict[str, object], str]] = {
    "parts-too-many": (
        chat(messages=[{"role": "user", "content": [{"type": "text", "text": "a"}] * 1025}]),
        "messages[0].content",
    ),
    "tools-too-many": (chat(tools=[{"type": "function", "function": {"name": "f"}}] * 1025), "tools"),
    "tool-calls-too-many": (
        chat(messages=[{"role": "assistant", "tool_calls": [CALL] * 257}]),
        "messages[0].tool_calls",
    ),
}


def kinds_of_errors() -> set[type[Exception]]:
    return {
        kind
        for module, root in ((errors, errors.GatewayError), (base, base.BackendError))
        for kind in vars(module).values()
        if isinstance(kind, type) and issubclass(kind, root) and kind is not root
    }


def test_every_kind_of_error_has_a_row() -> None:
    assert set(ERRORS) - kinds_of_errors() == {ZeroDivisionError}
    assert kinds_of_errors() - set(ERRORS) == set()


@pytest.mark.parametrize("kind", ERRORS, ids=lambda kind: kind.__name__)
async def test_error_is_answered_as_its_row_says(
    client: httpx.AsyncClient, backend: FakeBackend, kind: type[Exception]
) -> None:
    backend.reject = kind("said")
    status, name, code, anthropic = ERRORS[kind]
    answer = await client.post(CHAT, json=chat())
    error = answer.json()["error"]
    assert (answer.status_code, error["type"], error["code"]) == (status, name, code)
    assert ("retry-after" in answer.headers) == (status in (429, 503))
    body = {"model": "tiny", "max_tokens": 5, "messages": [{"role": "user", "content": "hi"}]}
    answer = await client.post(ANTHROPIC, json=body)
    assert (answer.status_code, answer.json()["error"]["type"]) == (status, anthropic)


async def test_engine_that_names_a_field_blames_the_client(client: httpx.AsyncClient, backend: FakeBackend) -> None:
    for param, code in (("logit_bias", None), ("n", None), ("messages", "context_length_exceeded")):
        backend.reject = base.RequestRejectedError(f"{param}: said", param=param)
        answer = await client.post(CHAT, json=chat())
        error = answer.json()["error"]
        assert (answer.status_code, error["param"], error["code"]) == (400, param, code)


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [("POST", "/v1/nothing", 404, "unknown_path"), ("GET", CHAT, 405, "method_not_allowed")],
)
async def test_wrong_path_and_method(client: httpx.AsyncClient, method: str, path: str, status: int, code: str) -> None:
    answer = await client.request(method, path)
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)


def test_every_code_is_in_the_docs() -> None:
    folder = Path(__file__).parents[2] / "docs"
    text = "".join((folder / page).read_text(encoding="utf-8") for page in PAGES)
    assert {code for _, _, code, _ in ERRORS.values() if code and f"`{code}`" not in text} == set()


@pytest.mark.parametrize("module", LIMITS)
def test_every_limit_has_a_row_of_wrong_input(module: str) -> None:
    names = {name for name in vars(importlib.import_module(f"gateway.{module}")) if name.startswith(("MAX_", "MIN_"))}
    own = {name for name in names if name in _text_of(module)}
    assert own == set(LIMITS[module]), "a limit without a row, or a row without its limit"
    rows = {**BODIES, **FIELDS, **COMPLETIONS, **MESSAGES, **REFUSED, **TOO_MANY}
    assert set(LIMITS[module].values()) <= set(rows)


@pytest.mark.parametrize(("body", "param"), TOO_MANY.values(), ids=TOO_MANY)
async def test_too_many_of_something_are_refused(
    client: httpx.AsyncClient, body: dict[str, object], param: str
) -> None:
    answer = await client.post(CHAT, json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


def _text_of(module: str) -> set[str]:
    """Names that a module defines, not imports."""
    lines = (Path(__file__).parents[2] / "gateway" / f"{module}.py").read_text(encoding="utf-8").splitlines()
    defined = [line.partition(" = ")[0] for line in lines if " = " in line and line.startswith(("MAX_", "MIN_"))]
    return {name.strip() for names in defined for name in names.split(",")}
