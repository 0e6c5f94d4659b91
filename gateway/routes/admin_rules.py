"""`/admin/v1/rules`: the rules of the normalizer, and in which mode each runs for whom."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter
from pydantic import AfterValidator, Field
from starlette.requests import Request

from gateway.admin_wire import MAX_NAME_CHARS, Body, Name, author_of, read_body, read_query
from gateway.normalize.modes import EVERY, Place, RuleModes
from gateway.normalize.registry import Choice
from gateway.normalize.rule import Mode
from gateway.storage.rule_settings import RuleSettings
from gateway.storage.store import Store

Json = dict[str, Any]


def _path(text: str) -> str:
    if text != EVERY and not text.startswith("/"):
        raise ValueError(f"a path such as /v1/chat/completions, or {EVERY}")
    return text


Route = Annotated[str, Field(max_length=MAX_NAME_CHARS), AfterValidator(_path)]


class PlaceQuery(Body):
    """For whom."""

    tenant: Name = EVERY
    route: Route = EVERY


class ModeBody(PlaceQuery):
    """`PUT /rules/{rule}`."""

    mode: Literal["off", "audit", "on"]
    params: Json = Field(default_factory=dict)


def add_rule_routes(router: APIRouter, modes: RuleModes, settings: RuleSettings, store: Store) -> None:
    """Add the routes. What changes a mode is in force on this gateway before it is answered."""

    async def tenant_id(name_or_id: str) -> str:
        return EVERY if name_or_id == EVERY else (await store.tenants.find(name_or_id)).id

    @router.get("/rules")
    async def list_rules(request: Request) -> Json:
        """Every rule in its order, with its mode for a tenant and route, and all choices that were made."""
        query = read_query(request, PlaceQuery)
        resolved = modes.resolved(await tenant_id(query.tenant), query.route)
        rules = [
            {
                "name": rule.name,
                "version": rule.version,
                "class": rule.rule_class.value,
                "default": rule.default.value,
                "audit_params": dict(rule.audit_params),
                **_choice(resolved[rule.name]),
            }
            for rule in modes.registry.rules
        ]
        choices = [place._asdict() | _choice(choice) for place, choice in sorted(modes.choices.items())]
        return {"object": "list", "data": rules, "choices": choices}

    @router.put("/rules/{rule}")
    async def set_mode(request: Request, rule: str) -> Json:
        body = await read_body(request, ModeBody)
        place = Place(await tenant_id(body.tenant), body.route, rule)
        choice = Choice(Mode(body.mode), body.params)
        modes.check(place, choice)
        await settings.set(author_of(request), place, choice)
        await store.refresh()  # the prompts too, whose canonical forms follow
        return place._asdict() | _choice(choice)

    @router.delete("/rules/{rule}")
    async def clear_mode(request: Request, rule: str) -> Json:
        query = read_query(request, PlaceQuery)
        place = Place(await tenant_id(query.tenant), query.route, rule)
        await settings.clear(author_of(request), place)
        await store.refresh()
        return place._asdict() | {"cleared": True}


def _choice(choice: Choice) -> Json:
    return {"mode": choice.mode.value, "params": dict(choice.params)}
