"""`/admin/v1/prompts`: registering prompts, keeping them warm, and seeing who uses them."""

from __future__ import annotations

import asyncio
import time

import orjson
from fastapi import APIRouter
from starlette.requests import Request

from gateway.admin_wire import SpanQuery, author_of, iso_time, page_body, read_body, read_query
from gateway.conversation_diff import unified_diff
from gateway.errors import NotFoundError, shown
from gateway.prompts.operator import PromptOperator
from gateway.prompts.repository import (
    find_prompt,
    find_version,
    list_prompts,
    load_active_versions,
    load_versions,
)
from gateway.prompts.statistics import prompt_statistics, usage_by_prompt
from gateway.prompts.versions import Prompt
from gateway.prompts.wire import (
    ActivateBody,
    DiffQuery,
    Json,
    NewPromptBody,
    PromptsQuery,
    PromptUsageQuery,
    RetentionBody,
    VersionBody,
    drift_json,
    prompt_json,
    version_json,
    whole_version_json,
)
from gateway.storage.request_log import RequestLog
from gateway.storage.tenants import find_tenant

_DAY_SECONDS = 86400.0
_UNUSED = {"num_requests": 0, "num_hits": 0, "num_cached_tokens": 0, "num_saved_tokens": 0, "last_used_at": None}


def add_prompt_routes(router: APIRouter, prompts: PromptOperator, log: RequestLog) -> None:
    """Add all routes."""
    _add_writing_routes(router, prompts)
    _add_reading_routes(router, prompts)
    _add_usage_routes(router, prompts, log)


def _add_writing_routes(router: APIRouter, prompts: PromptOperator) -> None:
    def shown(prompt: Prompt) -> Json:
        return prompt_json(prompt, prompts.state(prompt))

    @router.post("/prompts", status_code=201)
    async def create(request: Request) -> Json:
        body = await read_body(request, NewPromptBody)
        made = await prompts.create(author_of(request), body.name, body.scope, body.draft(time.time()))
        return shown(made.prompt) | {"versions": [version_json(made.version)]}

    @router.post("/prompts/{prompt}/versions", status_code=201)
    async def add_version(request: Request, prompt: str) -> Json:
        body = await read_body(request, VersionBody)
        made = await prompts.add(author_of(request), prompt, body.draft(time.time()), activate=body.activate)
        return shown(made.prompt) | {"versions": [version_json(made.version)]}

    @router.post("/prompts/{prompt}/activate")
    async def activate(request: Request, prompt: str) -> Json:
        body = await read_body(request, ActivateBody)
        return shown(await prompts.activate(author_of(request), prompt, body.version))

    @router.post("/prompts/{prompt}/rollback")
    async def roll_back(request: Request, prompt: str) -> Json:
        return shown(await prompts.activate(author_of(request), prompt, None))

    @router.post("/prompts/{prompt}/retire")
    @router.delete("/prompts/{prompt}")
    async def retire(request: Request, prompt: str) -> Json:
        return shown(await prompts.retire(author_of(request), prompt))

    @router.post("/prompts/{prompt}/warm")
    async def warm(request: Request, prompt: str) -> Json:
        state = await prompts.warm(author_of(request), prompt)
        async with prompts.database.read() as connection:
            return prompt_json(await find_prompt(connection, prompt), state)

    @router.put("/prompts/{prompt}/retention")
    async def set_retention(request: Request, prompt: str) -> Json:
        body = await read_body(request, RetentionBody)
        return shown(await prompts.set_retention(author_of(request), prompt, body.retention("", time.time())))


def _add_reading_routes(router: APIRouter, prompts: PromptOperator) -> None:
    @router.get("/prompts")
    async def list_all(request: Request) -> Json:
        query = read_query(request, PromptsQuery)
        async with prompts.database.read() as connection:
            tenant_id = None if query.tenant is None else (await find_tenant(connection, query.tenant)).id
            page = await list_prompts(connection, query.span, tenant_id=tenant_id, with_retired=query.retired)
        return page_body([prompt_json(entry, prompts.state(entry)) for entry in page.entries], page.next_cursor)

    @router.get("/prompts/{prompt}")
    async def show(prompt: str) -> Json:
        async with prompts.database.read() as connection:
            found = await find_prompt(connection, prompt)
            versions = await load_versions(connection, [found.id])
        return prompt_json(found, prompts.state(found)) | {"versions": [version_json(entry) for entry in versions]}

    @router.get("/prompts/{prompt}/versions/{version}")
    async def show_version(prompt: str, version: str) -> Json:
        if not (version.isascii() and version.isdecimal() and len(version) < 10):
            raise NotFoundError(f"version: got {shown(version)}, wanted its number", param="version")
        number = int(version)
        async with prompts.database.read() as connection:
            return whole_version_json(await find_version(connection, await find_prompt(connection, prompt), number))

    @router.get("/prompts/{prompt}/diff")
    async def diff(request: Request, prompt: str) -> Json:
        query = read_query(request, DiffQuery)
        async with prompts.database.read() as connection:
            found = await find_prompt(connection, prompt)
            old, new = [await find_version(connection, found, number) for number in (query.old, query.new)]
        diff = await asyncio.to_thread(
            unified_diff,
            orjson.loads(old.canonical),
            orjson.loads(new.canonical),
            old_name=f"{found.name} v{old.version}",
            new_name=f"{found.name} v{new.version}",
        )
        return {"id": found.id, "from": old.version, "to": new.version, "diff": diff}


def _add_usage_routes(router: APIRouter, prompts: PromptOperator, log: RequestLog) -> None:
    @router.get("/prompts/{prompt}/statistics")
    async def statistics(request: Request, prompt: str) -> Json:
        since, until = read_query(request, SpanQuery).bounds(time.time())
        async with prompts.database.read() as connection:
            found = await find_prompt(connection, prompt)
        await log.flush()
        sums = await prompt_statistics(prompts.database, found.id, since=since, until=until)
        span = {"since": iso_time(since), "until": iso_time(until)}
        return {"id": found.id, **span, **sums, "last_used_at": iso_time(sums["last_used_at"])}

    @router.get("/usage/prompts")
    async def usage(request: Request) -> Json:
        """List prompts with their version in force and who used them, all that a table of prompts shows."""
        query = read_query(request, PromptUsageQuery)
        since, until = query.bounds(time.time())
        await log.flush()
        async with prompts.database.read() as connection:
            tenant_id = None if query.tenant is None else (await find_tenant(connection, query.tenant)).id
            page = await list_prompts(connection, query.span, tenant_id=tenant_id, with_retired=query.retired)
            versions = await load_active_versions(connection, [entry.id for entry in page.entries])
        used = await usage_by_prompt(prompts.database, since=since, until=until)
        rows = []
        for entry in page.entries:
            sums = used.get(entry.id, _UNUSED)
            version = versions.get(entry.id)
            rows.append(
                prompt_json(entry, prompts.state(entry))
                | {"active": None if version is None else version_json(version)}
                | {**sums, "last_used_at": iso_time(sums["last_used_at"])}
                | {"num_drifted_requests": sum(variant.count for variant in prompts.registry.drift(entry))}
            )
        return page_body(rows, page.next_cursor) | {"since": iso_time(since), "until": iso_time(until)}

    @router.get("/prompts/{prompt}/drift")
    async def drift(prompt: str) -> Json:
        async with prompts.database.read() as connection:
            found = await find_prompt(connection, prompt)
        variants = drift_json(prompts.registry.drift(found))
        return {"id": found.id, "version": found.active_version, "variants": variants}
