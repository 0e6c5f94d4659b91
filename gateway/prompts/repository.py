"""Prompts and versions in the database. Every write tells other gateways, and is in the audit log of its caller."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from sqlalchemy import Row, func, insert, or_, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.errors import ConflictError, NotFoundError, shown
from gateway.prompts.versions import Prompt, PromptVersion, Retention
from gateway.storage.rows import Page, PageSpan, page_by
from gateway.storage.tables import PROMPT_VERSIONS, PROMPTS


async def load_prompts(connection: AsyncConnection) -> list[Prompt]:
    """Return all prompts that are not retired, by name."""
    query = select(PROMPTS).where(PROMPTS.c.retired_at.is_(None)).order_by(PROMPTS.c.name, PROMPTS.c.tenant_id)
    return [_prompt(row) for row in await connection.execute(query)]


async def list_prompts(
    connection: AsyncConnection, span: PageSpan, *, tenant_id: str | None, with_retired: bool
) -> Page[Prompt]:
    """Return one page of them, the oldest first."""
    query = select(PROMPTS)
    if tenant_id is not None:
        query = query.where(PROMPTS.c.tenant_id == tenant_id)
    if not with_retired:
        query = query.where(PROMPTS.c.retired_at.is_(None))
    return await page_by(connection, query, span, PROMPTS.c.id, _prompt)


async def find_prompt(connection: AsyncConnection, name_or_id: str) -> Prompt:
    """Return one by its id, or by its name where only one tenant has a prompt of that name.

    Raises: NotFoundError: there is none; ConflictError: several have that name.
    """
    is_meant = or_(PROMPTS.c.id == name_or_id, PROMPTS.c.name == name_or_id)
    found = [_prompt(row) for row in await connection.execute(select(PROMPTS).where(is_meant))]
    if not found:
        raise NotFoundError(
            f"prompt: got {shown(name_or_id)}, wanted the id or name of a registered prompt", param="prompt"
        )
    by_id = [prompt for prompt in found if prompt.id == name_or_id]
    if len(by_id or found) > 1:
        ids = ", ".join(prompt.id for prompt in found)
        raise ConflictError(f"prompt: {shown(name_or_id)} is the name of several, wanted an id: {ids}", param="prompt")
    return (by_id or found)[0]


async def find_version(connection: AsyncConnection, prompt: Prompt, version: int) -> PromptVersion:
    """Return one version.

    Raises: NotFoundError: there is none of this number.
    """
    query = select(PROMPT_VERSIONS).where(
        PROMPT_VERSIONS.c.prompt_id == prompt.id, PROMPT_VERSIONS.c.version == version
    )
    row = (await connection.execute(query)).one_or_none()
    if row is None:
        raise NotFoundError(f"version: got {version}, wanted a version of {shown(prompt.name)}", param="version")
    return _version(row)


async def add_prompt(connection: AsyncConnection, prompt: Prompt) -> None:
    """Add a name.

    Raises: ConflictError: the tenant has it already.
    """
    taken = select(PROMPTS.c.id).where(PROMPTS.c.tenant_id == prompt.tenant_id, PROMPTS.c.name == prompt.name)
    if (await connection.execute(taken)).first() is not None:
        raise _name_taken(prompt.name)
    try:
        await connection.execute(insert(PROMPTS).values(dataclasses.asdict(prompt)))
    except IntegrityError as error:  # another gateway was faster
        raise _name_taken(prompt.name) from error


async def set_prompt(connection: AsyncConnection, prompt_id: str, **values: Any) -> None:
    """Change what may change of a prompt: its active version, and whether it is retired."""
    await connection.execute(update(PROMPTS).where(PROMPTS.c.id == prompt_id).values(values))


async def next_version(connection: AsyncConnection, prompt_id: str) -> int:
    """Return the number of the version that comes next."""
    latest = select(func.max(PROMPT_VERSIONS.c.version)).where(PROMPT_VERSIONS.c.prompt_id == prompt_id)
    return int((await connection.execute(latest)).scalar_one() or 0) + 1


async def add_version(connection: AsyncConnection, version: PromptVersion) -> None:
    """Add a version; it is never changed afterwards, but for its retention.

    Raises: ConflictError: another gateway added this number just now.
    """
    names = [field.name for field in dataclasses.fields(version)]
    values = {name: getattr(version, name) for name in names} | {
        "source": dict(version.source),
        "slots": list(version.slots),
        "rules": dict(version.rules),
        "retention": dataclasses.asdict(version.retention),
        "token_ids": version.token_ids.astype("<i4").tobytes(),
        "num_tokens": version.num_tokens,
    }
    try:
        await connection.execute(insert(PROMPT_VERSIONS).values(values))
    except IntegrityError as error:
        raise ConflictError("version: another one was added at the same moment; send it again") from error


async def set_retention(connection: AsyncConnection, prompt_id: str, version: int, retention: Retention) -> None:
    """Change how long a version's blocks are to stay; its text stays what it is."""
    await connection.execute(
        update(PROMPT_VERSIONS)
        .where(PROMPT_VERSIONS.c.prompt_id == prompt_id, PROMPT_VERSIONS.c.version == version)
        .values(retention=dataclasses.asdict(retention))
    )


async def load_versions(connection: AsyncConnection, prompt_ids: Sequence[str]) -> list[PromptVersion]:
    """Return all versions of some prompts, oldest first."""
    query = (
        select(PROMPT_VERSIONS)
        .where(PROMPT_VERSIONS.c.prompt_id.in_(prompt_ids))
        .order_by(PROMPT_VERSIONS.c.prompt_id, PROMPT_VERSIONS.c.version)
    )
    return [_version(row) for row in await connection.execute(query)]


async def load_active_versions(connection: AsyncConnection, prompt_ids: Sequence[str]) -> dict[str, PromptVersion]:
    """Return the version in force of each of some prompts, by prompt."""
    query = (
        select(PROMPT_VERSIONS)
        .join(PROMPTS, PROMPTS.c.id == PROMPT_VERSIONS.c.prompt_id)
        .where(PROMPTS.c.id.in_(prompt_ids), PROMPT_VERSIONS.c.version == PROMPTS.c.active_version)
    )
    return {version.prompt_id: version for version in map(_version, await connection.execute(query))}


def _name_taken(name: str) -> ConflictError:
    return ConflictError(
        f"name: got {shown(name)}, wanted one that this tenant has not registered yet; or add a version to that prompt",
        param="name",
    )


def _prompt(row: Row[Any]) -> Prompt:
    return Prompt(**row._mapping)


def _version(row: Row[Any]) -> PromptVersion:
    values = dict(row._mapping)
    del values["num_tokens"]
    return PromptVersion(
        **values
        | {
            "slots": tuple(values["slots"] or ()),
            "rules": values["rules"] or {},
            "retention": Retention(**values["retention"] or {}),
            "token_ids": np.frombuffer(values["token_ids"], dtype="<i4").astype(np.int32),
        }
    )
