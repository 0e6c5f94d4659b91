"""Prints the description of the routes that an application serves."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import orjson
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from gateway.dashboard.session import COOKIE
from gateway.error_shapes import is_anthropic
from gateway.errors import (
    AdminDisabledError,
    AuthenticationError,
    BodyTooLargeError,
    CrossSiteError,
    InvalidRequestError,
    codes_by_status,
)
from gateway.openapi.admin_answers import ADMIN_ANSWERS
from gateway.openapi.admin_seen import ADMIN_SEEN
from gateway.openapi.answers import ANSWERS, error_schema
from gateway.openapi.bodies import BODIES, model_name
from gateway.openapi.operation import Access, Given, Operation
from gateway.openapi.schema import TEXT, Schema, ref
from gateway.version import VERSION

PATH = "/openapi.json"

Json = dict[str, Any]

_HEADERS: dict[str, str] = {
    "x-request-id": "The id of the request: the client's own, or one that was made for it.",
    "x-prefixgate-cache": "What was reused: cached=…; predicted=…; prompt=…; reason=…; rules=…",
    "retry-after": "Seconds to wait before the next try.",
    "www-authenticate": "How to send a key.",
    **{
        f"x-ratelimit-{what}-{of}": f"Where {of} are limited: {told}."
        for of in ("requests", "tokens")
        for what, told in (("limit", "how many"), ("remaining", "how many are left"), ("reset", "when all are back"))
    },
}
_ERROR_HEADERS = {401: ("www-authenticate",), 429: ("retry-after",), 503: ("retry-after",)}
_ACCESS_ERRORS: dict[Access, tuple[type[Exception], ...]] = {
    Access.EVERYBODY: (),
    Access.KEY: (AuthenticationError,),
    Access.ADMIN: (AuthenticationError, AdminDisabledError, CrossSiteError),
}
_SESSION = "DashboardCookie"
_SECURITY = {
    Access.KEY.value: {"type": "http", "scheme": "bearer", "description": "Needed once the first API key was made."},
    Access.ADMIN.value: {"type": "http", "scheme": "bearer", "description": "The key in PREFIXGATE_ADMIN_KEY."},
    _SESSION: {"type": "apiKey", "in": "cookie", "name": COOKIE, "description": "From /dashboard/login."},
}
_CONVERTER = re.compile(r":[a-z]+}")
_PARAMETER = re.compile(r"{(\w+)}")


def description_route(
    routes: Iterable[BaseRoute], operations: Sequence[Operation], *, model: str | None = None
) -> Route:
    """Make the route of the description of others; `model` is the only one that they serve."""
    body = orjson.dumps(document(routes, operations, model=model))

    async def describe(_: Request) -> Response:
        return Response(body, media_type="application/json")

    return Route(PATH, describe)


def document(routes: Iterable[BaseRoute], operations: Sequence[Operation], *, model: str | None) -> Json:
    """Describe those of the operations that are served, and the description itself."""
    served = {*served_operations(routes), ("GET", PATH)}
    schemas: dict[str, Schema] = {"ModelName": model_name(model), **BODIES, **ANSWERS, **ADMIN_ANSWERS, **ADMIN_SEEN}
    paths: dict[str, Json] = {}
    for operation in operations:
        if (operation.method, operation.path) in served:
            paths.setdefault(operation.path, {})[operation.method.lower()] = _describe(operation, schemas)
    return {
        "openapi": "3.1.0",
        "info": {"title": "prefixgate", "version": VERSION},
        "paths": paths,
        "components": {
            "schemas": schemas,
            "headers": {name: {"description": told, "schema": TEXT} for name, told in _HEADERS.items()},
            "securitySchemes": _SECURITY,
        },
    }


def served_operations(routes: Iterable[BaseRoute]) -> Iterator[tuple[str, str]]:
    """Give method and path of each, as OpenAPI writes them."""
    for route in routes:
        if isinstance(route, Route):
            for method in (route.methods or set()) - {"HEAD"}:
                yield method, _CONVERTER.sub("}", route.path)


def _describe(operation: Operation, schemas: dict[str, Schema]) -> Json:
    errors = [*operation.errors, *_ACCESS_ERRORS[operation.access]]
    described: Json = {"summary": operation.summary, "parameters": list(_parameters(operation))}
    if operation.access is not Access.EVERYBODY:
        ways = [operation.access.value, *([_SESSION] if operation.access is Access.ADMIN else [])]
        described["security"] = [{way: []} for way in ways]
    if operation.body is not None:
        errors += [InvalidRequestError, BodyTooLargeError]
        described["requestBody"] = _body(operation.body, schemas)
    elif operation.query is not None:
        errors.append(InvalidRequestError)
    responses = {str(status): _given(given) for status, given in operation.given.items()}
    responses |= _errors(operation.path, errors)
    if operation.passes_on:
        responses["default"] = {"description": "Whatever else the upstream answers"}
    return described | {"responses": dict(sorted(responses.items()))}


def _parameters(operation: Operation) -> Iterator[Json]:
    for name in _PARAMETER.findall(operation.path):
        yield {"name": name, "in": "path", "required": True, "schema": TEXT}
    if operation.query is None:
        return
    model = operation.query.model_json_schema()
    for name, schema in model["properties"].items():
        is_required = name in model.get("required", ())
        yield {"name": name, "in": "query", "required": is_required, "schema": _without_null(schema)}


def _without_null(schema: Schema) -> Schema:
    """A query cannot say null."""
    if "anyOf" not in schema:
        return schema
    kinds = [kind for kind in schema["anyOf"] if kind != {"type": "null"}]
    return kinds[0] if len(kinds) == 1 else {"anyOf": kinds}


def _body(body: Schema | type[BaseModel], schemas: dict[str, Schema]) -> Json:
    """Describe a body; a pydantic model, and those in it, are entered among the components."""
    is_required = True
    if not isinstance(body, dict):
        schema = body.model_json_schema(ref_template="#/components/schemas/{model}")
        schemas.update(schema.pop("$defs", {}))
        schemas[body.__name__] = schema
        is_required = "required" in schema  # without a body the admin API reads an object without fields
        body = ref(body.__name__)
    return {"required": is_required, "content": {"application/json": {"schema": body}}}


def _given(given: Given) -> Json:
    described: Json = {"description": "The answer", "headers": _headers(given.headers)}
    if given.schema is None:
        return described
    content: Json = {given.media_type: {"schema": given.schema}}
    if given.stream is not None:
        told = f"The data of each event is a {given.stream}, or an error in its place."
        event = {"type": "object", "required": ["data"], "properties": {"event": TEXT, "data": TEXT}}
        content["text/event-stream"] = {"schema": event | {"description": told}}
    return described | {"content": content}


def _errors(path: str, errors: Sequence[type[Exception]]) -> dict[str, Json]:
    responses = {}
    for status, codes in codes_by_status(errors).items():
        schema = ref("AnthropicError") if is_anthropic(path) else error_schema(codes)
        words = ", ".join(sorted(code or "invalid" for code in codes))
        responses[str(status)] = {
            "description": f"An error: {words}",
            "headers": _headers(_ERROR_HEADERS.get(status, ())),
            "content": {"application/json": {"schema": schema}},
        }
    return responses


def _headers(names: Sequence[str]) -> Json:
    return {name: {"$ref": f"#/components/headers/{name}"} for name in ("x-request-id", *names)}
