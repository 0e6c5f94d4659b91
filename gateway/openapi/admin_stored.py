"""The operations of the admin API on what the database keeps, whatever generates: tenants, keys, requests, rules."""

from __future__ import annotations

from pydantic import BaseModel

from gateway.admin_wire import (
    ExpireBody,
    KeysQuery,
    LimitsBody,
    NewKeyBody,
    NewTenantBody,
    NumberedPageQuery,
    PageQuery,
    RotateBody,
    SpanQuery,
)
from gateway.errors import ConflictError, NotFoundError, StorageUnavailableError
from gateway.openapi.operation import Access, Given, Operation
from gateway.openapi.schema import TEXT, ref
from gateway.routes.admin_requests import FilterQuery, HistoryQuery, RequestsQuery
from gateway.routes.admin_rules import ModeBody, PlaceQuery
from gateway.routes.admin_series import SeriesQuery

_STORED = (StorageUnavailableError,)
_NAMED = (*_STORED, NotFoundError)
_CHANGED = (*_NAMED, ConflictError)


def admin_get(
    path: str, summary: str, schema: str, *errors: type[Exception], query: type[BaseModel] | None = None
) -> Operation:
    """Describe one that only reads."""
    return admin_operation("GET", path, summary, schema, *errors, query=query)


def admin_operation(
    method: str,
    path: str,
    summary: str,
    schema: str,
    *errors: type[Exception],
    status: int = 200,
    body: type[BaseModel] | None = None,
    query: type[BaseModel] | None = None,
) -> Operation:
    """Describe an operation under `/admin/v1`; its errors are those beside the ones of every admin route."""
    given = {status: Given(ref(schema))}
    return Operation(method, f"/admin/v1{path}", summary, Access.ADMIN, given, errors, body, query)


_KEYS = (
    admin_operation(
        "POST", "/tenants", "Make a tenant", "Tenant", *_STORED, ConflictError, status=201, body=NewTenantBody
    ),
    admin_get("/tenants", "List the tenants", "Page", *_STORED, query=PageQuery),
    admin_get(
        "/usage/tenants",
        "Who used how much, of which limits and of the cache",
        "TenantUsage",
        *_STORED,
        query=SpanQuery,
    ),
    admin_get("/tenants/{tenant}", "Show a tenant", "Tenant", *_CHANGED),
    admin_operation("PATCH", "/tenants/{tenant}", "Change a tenant's limits", "Tenant", *_CHANGED, body=LimitsBody),
    admin_get("/audit", "List what operators changed", "Page", *_STORED, query=NumberedPageQuery),
    admin_operation("POST", "/keys", "Make an API key", "NewKey", *_CHANGED, status=201, body=NewKeyBody),
    admin_get("/keys", "List the API keys", "Page", *_CHANGED, query=KeysQuery),
    admin_get("/keys/{key_id}", "Show an API key", "Key", *_NAMED),
    admin_operation("PATCH", "/keys/{key_id}", "Change a key's limits", "Key", *_CHANGED, body=LimitsBody),
    admin_operation("DELETE", "/keys/{key_id}", "Revoke a key", "Key", *_CHANGED),
    admin_operation("POST", "/keys/{key_id}/revoke", "Revoke a key", "Key", *_CHANGED),
    admin_operation("POST", "/keys/{key_id}/expire", "Set a key's end", "Key", *_CHANGED, body=ExpireBody),
    admin_operation("POST", "/keys/{key_id}/rotate", "Replace a key", "NewKey", *_CHANGED, status=201, body=RotateBody),
)

_REQUESTS = (
    admin_get("/requests", "List logged requests", "Page", *_CHANGED, query=RequestsQuery),
    Operation(
        "GET",
        "/admin/v1/requests/export",
        "Export logged requests, one a line",
        Access.ADMIN,
        {200: Given(TEXT, "application/jsonl")},
        _CHANGED,
        query=FilterQuery,
    ),
    admin_get("/requests/{request_id}", "Show a logged request", "LoggedRequest", *_NAMED),
    admin_get("/series", "Sums by steps of minutes", "Series", *_STORED, query=SeriesQuery),
    admin_get("/requests/{request_id}/changes", "Show what rules change in it", "Changes", *_NAMED),
    admin_get("/history", "Sums by the hour", "Page", *_CHANGED, query=HistoryQuery),
    admin_get("/losses", "What could have been cached, and why it was not", "Losses", *_STORED, query=SpanQuery),
)

_RULES = (
    admin_get("/rules", "List the rules and their modes", "Rules", *_CHANGED, query=PlaceQuery),
    admin_operation("PUT", "/rules/{rule}", "Choose a rule's mode", "RuleChoice", *_CHANGED, body=ModeBody),
    admin_operation("DELETE", "/rules/{rule}", "Take a choice back", "RuleChoice", *_CHANGED, query=PlaceQuery),
)

ADMIN_STORED: tuple[Operation, ...] = (*_KEYS, *_REQUESTS, *_RULES)
