"""All operations of the admin API. Their bodies and queries are the models that read them."""

from __future__ import annotations

from gateway.admin_wire import SpanQuery
from gateway.backends.base import BackendUnavailableError, RequestRejectedError
from gateway.errors import (
    ConflictError,
    ContextLengthError,
    InvalidRequestError,
    ModelNotFoundError,
    NotFoundError,
    StorageUnavailableError,
    TooManyListenersError,
)
from gateway.openapi.admin_seen import EVENTS
from gateway.openapi.admin_stored import ADMIN_STORED, admin_get, admin_operation
from gateway.openapi.operation import Access, Given, Operation
from gateway.prompts.wire import (
    ActivateBody,
    DiffQuery,
    NewPromptBody,
    PromptsQuery,
    PromptUsageQuery,
    RetentionBody,
    VersionBody,
)
from gateway.routes.admin_cache import CacheBody
from gateway.routes.admin_config import ConfigBody
from gateway.routes.admin_normalize import NormalizeBody

_STORED = (StorageUnavailableError,)
_ENGINE = (BackendUnavailableError,)
_NAMED = (*_STORED, NotFoundError)
_CHANGED = (*_NAMED, ConflictError)
_PROMPTS = (*_CHANGED, *_ENGINE, InvalidRequestError, ContextLengthError, RequestRejectedError, ModelNotFoundError)

_PROMPT_VERSIONS = (
    admin_operation("POST", "/prompts", "Register a prompt", "Prompt", *_PROMPTS, status=201, body=NewPromptBody),
    admin_get("/prompts", "List the registered prompts", "Page", *_CHANGED, query=PromptsQuery),
    admin_get("/prompts/{prompt}", "Show a prompt", "Prompt", *_CHANGED),
    admin_operation("DELETE", "/prompts/{prompt}", "Retire a prompt", "Prompt", *_PROMPTS),
    admin_operation(
        "POST", "/prompts/{prompt}/versions", "Add a version", "Prompt", *_PROMPTS, status=201, body=VersionBody
    ),
    admin_get(
        "/prompts/{prompt}/versions/{version}", "Show a version, texts and tokens too", "PromptVersion", *_CHANGED
    ),
    admin_operation("POST", "/prompts/{prompt}/activate", "Choose a version", "Prompt", *_PROMPTS, body=ActivateBody),
    admin_operation("POST", "/prompts/{prompt}/rollback", "Go back to the version before", "Prompt", *_PROMPTS),
    admin_operation("POST", "/prompts/{prompt}/retire", "Retire a prompt", "Prompt", *_PROMPTS),
    admin_operation("POST", "/prompts/{prompt}/warm", "Warm it in the cache", "Prompt", *_PROMPTS),
    admin_operation(
        "PUT", "/prompts/{prompt}/retention", "Say how it is kept in the cache", "Prompt", *_PROMPTS, body=RetentionBody
    ),
    admin_get("/prompts/{prompt}/diff", "Compare two versions", "Difference", *_CHANGED, query=DiffQuery),
    admin_get("/prompts/{prompt}/statistics", "Who used it", "Object", *_CHANGED, query=SpanQuery),
    admin_get("/usage/prompts", "List prompts with who used them", "Page", *_CHANGED, query=PromptUsageQuery),
    admin_get("/prompts/{prompt}/drift", "Live traffic that almost matches", "Drift", *_CHANGED),
)

_GATEWAY = (
    admin_get("/overview", "See the gateway at a glance", "Overview"),
    Operation(
        "GET",
        "/admin/v1/live",
        "See the same again and again",
        Access.ADMIN,
        {200: Given(EVENTS, "text/event-stream")},
        (TooManyListenersError,),
    ),
    admin_get(
        "/requests/{request_id}/blocks", "Show the blocks a request holds", "RequestBlocks", *_ENGINE, NotFoundError
    ),
    admin_get("/requests/{request_id}/explain", "Explain why it missed", "Object", *_ENGINE, NotFoundError),
    admin_get("/config", "Show every option", "Config", *_ENGINE),
    admin_operation(
        "PATCH",
        "/config",
        "Change options",
        "Config",
        *_STORED,
        *_ENGINE,
        RequestRejectedError,
        NotFoundError,
        body=ConfigBody,
    ),
    admin_get("/cache", "Look at the block pool", "Cache", *_ENGINE),
    admin_operation(
        "PATCH",
        "/cache",
        "Change the cache's options",
        "CacheOptions",
        *_STORED,
        *_ENGINE,
        RequestRejectedError,
        body=CacheBody,
    ),
    admin_get("/savings", "What each rule saved", "Object"),
    admin_get("/upstreams", "Show the upstreams, and what of their caches was foreseen", "Object"),
    admin_operation(
        "POST",
        "/normalize",
        "Try the normalizer and the context policy on a body",
        "DryRun",
        *_ENGINE,
        NotFoundError,
        ContextLengthError,
        body=NormalizeBody,
    ),
)

ADMIN: tuple[Operation, ...] = (*ADMIN_STORED, *_PROMPT_VERSIONS, *_GATEWAY)
