"""`POST /admin/v1/normalize`: what would become of a body, without any effect."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Annotated, Any, Literal

from fastapi import APIRouter
from pydantic import AfterValidator, Field
from starlette.requests import Request

from gateway.admin_wire import Body, read_body
from gateway.backends.base import ModelInfo
from gateway.dry_run import DryRun, DryRunRequest
from gateway.errors import InvalidRequestError, NotFoundError, shown
from gateway.normalize.registry import Choice
from gateway.normalize.rule import Mode
from gateway.storage.store import Store

Json = dict[str, Any]

_MAX_HISTORY = 1000
_MAX_TENANT_CHARS = 1000


class RuleBody(Body):
    """A rule as it shall be for this run."""

    name: str
    enabled: Annotated[bool, Field(strict=True)] = True
    params: Json = Field(default_factory=dict)


def _json_numbers(value: Json) -> Json:
    """Refuse what this parser takes and JSON has not: NaN and Infinity."""
    try:
        json.dumps(value, allow_nan=False)
    except ValueError:
        raise ValueError("numbers as JSON has them, without NaN and Infinity") from None
    return value


class NormalizeBody(Body):
    """`POST /normalize`."""

    endpoint: str = "chat.completions"
    body: Annotated[Json, AfterValidator(_json_numbers)]
    tenant: Annotated[str, Field(min_length=1, max_length=_MAX_TENANT_CHARS)] = "default"
    mode: Literal["off", "audit", "on"] = "on"
    history: list[Json] = Field(default_factory=list, max_length=_MAX_HISTORY)
    rules: list[RuleBody] = Field(default_factory=list)

    def request(self) -> DryRunRequest:
        """Bring it into the form that is run. Raises: InvalidRequestError: a rule is named twice."""
        choices: dict[str, Choice] = {}
        for index, rule in enumerate(self.rules):
            if rule.name in choices:
                field = f"rules[{index}].name"
                raise InvalidRequestError(f"{field}: got {shown(rule.name)} twice, wanted each rule once", param=field)
            choices[rule.name] = Choice(Mode.ON if rule.enabled else Mode.OFF, rule.params)
        return DryRunRequest(self.body, self.endpoint, self.tenant, Mode(self.mode), self.history, choices)


def add_normalize_route(
    router: APIRouter, dry_run: DryRun, model_info: Callable[[], ModelInfo], store: Store | None
) -> None:
    """Add the route; where a tenant is known by a name, it is meant."""

    @router.post("/normalize")
    async def normalize(request: Request) -> Json:
        wanted = (await read_body(request, NormalizeBody)).request()
        with suppress(NotFoundError):  # any other label will do
            if store is not None:
                wanted = replace(wanted, tenant=(await store.tenants.find(wanted.tenant)).id)
        return await asyncio.to_thread(dry_run.run, wanted, model_info())
