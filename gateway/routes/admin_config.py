"""`/admin/v1/config`: every option as it is in force, and changes of those that may change while it serves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Annotated, Any, Literal

from fastapi import APIRouter
from pydantic import Field
from starlette.requests import Request

from gateway.admin_wire import author_of, read_body
from gateway.backends.base import Backend
from gateway.normalize.modes import EVERY, Place, RuleModes
from gateway.normalize.registry import Choice
from gateway.normalize.rule import Mode
from gateway.routes.admin_cache import CacheBody, change_cache
from gateway.settings import Settings
from gateway.storage.audit import Author, audited
from gateway.storage.retention import Retention
from gateway.storage.rule_settings import RuleSettings
from gateway.storage.store import Store
from gateway.template_check import TemplateVerdict

Json = dict[str, Any]

_MAX_ROWS = 2**62
_MAX_DAYS = 100_000.0


class ConfigBody(CacheBody):
    """`PATCH /config`: what may change while it serves."""

    request_log_rows: Annotated[int, Field(ge=0, le=_MAX_ROWS, strict=True)] | None = None
    request_log_days: Annotated[float, Field(gt=0, le=_MAX_DAYS, strict=True, allow_inf_nan=False)] | None = None
    rules: dict[str, Literal["off", "audit", "on"]] | None = None
    """For every tenant and route; narrower choices are made at `/rules`."""


class LiveConfig:
    """The options of a running gateway."""

    def __init__(
        self, settings: Settings, backend: Backend, modes: RuleModes, store: Store | None, template: TemplateVerdict
    ) -> None:
        self._settings = settings
        self._backend = backend
        self._modes = modes
        self._store = store
        self._template = template

    async def in_force(self) -> Json:
        """Return every option, the names of those that may change, and how the chat template suits the cache."""
        values = self._settings.shown()
        if self._backend.ready():
            values |= asdict(await self._backend.set_cache_options())
        if self._store is not None:
            kept = self._store.log.retention
            values |= {"request_log_rows": kept.max_rows, "request_log_days": kept.max_days}
        rules = {name: choice.mode.value for name, choice in self._modes.resolved(EVERY, EVERY).items()}
        found = {"changeable": list(ConfigBody.model_fields), "chat_template_check": self._template.shown()}
        return {**values, "rules": rules, **found}

    async def change(self, author: Author, body: ConfigBody, store: Store, rules: RuleSettings) -> None:
        """Put in force what a body gives. Raises: InvalidRequestError: a rule could not run, and nothing was changed."""
        choices = _choices(body.rules or {}, self._modes)
        cache = body.model_dump(include=set(CacheBody.model_fields), exclude_none=True)
        if cache:
            await change_cache(self._backend, store, author, cache)
        retention = _retention(body, store.log.retention)
        if retention != store.log.retention:
            async with audited(store.database, author, "config.change", "request_log", asdict(retention)):
                store.log.retention = retention
        for place, choice in choices.items():
            await rules.set(author, place, choice)
        if choices:
            await store.refresh()


def add_config_routes(router: APIRouter, config: LiveConfig, store: Store | None, rules: RuleSettings | None) -> None:
    """Add the routes. A change holds until the gateway ends, but for those of rules, which are stored."""

    @router.get("/config")
    async def show() -> Json:
        """Every option as it is in force, secrets masked, and the names of those that `PATCH` takes."""
        return await config.in_force()

    if store is None or rules is None:
        return

    @router.patch("/config")
    async def change(request: Request) -> Json:
        """Change the options that are given; return all."""
        await config.change(author_of(request), await read_body(request, ConfigBody), store, rules)
        return await config.in_force()


def _choices(chosen: Mapping[str, str], modes: RuleModes) -> dict[Place, Choice]:
    """Read rules with their modes; a mode alone leaves a rule its parameters.

    Raises: InvalidRequestError: one could not run.
    """
    choices = {}
    for name, mode in chosen.items():
        place = Place(EVERY, EVERY, name)
        choices[place] = Choice(Mode(mode), modes.choices[place].params if place in modes.choices else {})
        modes.check_named(place, choices[place])
    return choices


def _retention(body: ConfigBody, kept: Retention) -> Retention:
    rows, days = body.request_log_rows, body.request_log_days
    return Retention(kept.max_rows if rows is None else rows, kept.max_days if days is None else days)
