"""What the operator does to registered prompts: checked, stored with its line in the audit log, and in force at once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from gateway.backends.base import Backend
from gateway.errors import ConflictError, InvalidRequestError, shown
from gateway.normalize.modes import EVERY
from gateway.prompts.compiler import CompiledPrompt, PromptCompiler, canonical_json, check_length
from gateway.prompts.registered import RegisteredVersion
from gateway.prompts.registry import PromptRegistry
from gateway.prompts.repository import (
    add_prompt,
    add_version,
    find_prompt,
    find_version,
    next_version,
    set_prompt,
    set_retention,
)
from gateway.prompts.versions import Prompt, PromptVersion, Retention
from gateway.prompts.warming import Warmer, WarmState
from gateway.storage.audit import Author, write_audit
from gateway.storage.database import Database
from gateway.storage.rows import new_id
from gateway.storage.tenants import find_tenant

DEFAULT_TENANT = "default"
PUBLIC = "public"


@dataclass(frozen=True, slots=True)
class Draft:
    """A version that is not registered yet."""

    source: Mapping[str, Any]
    """`messages` and `tools`, as in a chat."""
    slots: Sequence[str] = ()
    rules: Mapping[str, str] | None = None
    model: str | None = None
    """None: the served one."""
    retention: Retention | None = None
    """None: that of the active version, or none."""


class PromptOperator:
    """Changes prompts. A pin is taken in the engine first: one beyond the budget changes nothing."""

    def __init__(
        self,
        database: Database,
        compiler: PromptCompiler,
        registry: PromptRegistry,
        warmer: Warmer,
        *,
        backend: Backend,
        model_name: str,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.database = database
        self.registry = registry
        self.warmer = warmer
        self._compiler = compiler
        self._backend = backend
        self._model_name = model_name
        self._clock = clock

    async def create(self, author: Author, name: str, scope: str | None, draft: Draft) -> RegisteredVersion:
        """Register a name with its first version, which is active.

        Args:
            author: for the audit log.
            name: unique among the tenant's.
            scope: id or name of the tenant that may use it, or `public`; None: the tenant of those without keys.
            draft: the version.

        Raises: InvalidRequestError, ContextLengthError: the draft is no use; NotFoundError: no such tenant;
        ConflictError: the name is taken, or it cannot be pinned; BackendUnavailableError: no engine can tell;
        StorageUnavailableError: nothing was written.
        """
        is_public = scope == PUBLIC
        async with self.database.read() as connection:
            owner = DEFAULT_TENANT if is_public or scope is None else scope
            tenant = await find_tenant(connection, owner, field="scope")
        compiled = await self._compile(draft, EVERY if is_public else tenant.id)
        now = self._clock()
        prompt = Prompt(new_id("pmt", now), name, tenant.id, is_public, 1, now, None)
        entry = RegisteredVersion(prompt, self._version(prompt.id, 1, draft, compiled), compiled)
        await self._claim_pin(entry)
        try:
            async with self.database.write() as connection:
                await add_prompt(connection, prompt)
                await add_version(connection, entry.version)
                details = {"name": name, "scope": prompt.scope, "token_sha256": entry.version.token_sha256}
                await write_audit(connection, author, "prompt.create", prompt.id, details)
                await self.database.announce_change(connection)
        except BaseException:
            await self.warmer.drop(entry.handle)
            raise
        await self.registry.refresh()
        return entry

    async def add(self, author: Author, name_or_id: str, draft: Draft, *, activate: bool) -> RegisteredVersion:
        """Add a version, active or not. Raises: as `create` does."""
        async with self.database.read() as connection:
            prompt = _not_retired(await find_prompt(connection, name_or_id))
        compiled = await self._compile(draft, EVERY if prompt.is_public else prompt.tenant_id)
        async with self.database.write() as connection:
            prompt = _not_retired(await find_prompt(connection, prompt.id))
            if draft.retention is None and prompt.active_version is not None:
                before = await find_version(connection, prompt, prompt.active_version)
                draft = replace(draft, retention=before.retention)
            number = await next_version(connection, prompt.id)
            version = self._version(prompt.id, number, draft, compiled)
            await add_version(connection, version)
            details = {"version": number, "token_sha256": version.token_sha256}
            await write_audit(connection, author, "prompt.version", prompt.id, details)
            await self.database.announce_change(connection)
        await self.registry.refresh()
        if activate:
            prompt = await self.activate(author, prompt.id, number)
        return RegisteredVersion(prompt, version, compiled)

    async def activate(self, author: Author, name_or_id: str, version: int | None) -> Prompt:
        """Make a version the one that is kept warm and that counts; None: the one before the active one.

        Raises: NotFoundError: no such prompt or version; ConflictError: it is retired, there is none before, or the
        version cannot be pinned; StorageUnavailableError: nothing was written.
        """
        async with self.database.read() as connection:
            prompt = _not_retired(await find_prompt(connection, name_or_id))
            action = "prompt.activate" if version is not None else "prompt.rollback"
            if version is None:
                version = (prompt.active_version or 1) - 1
                if version < 1:
                    raise ConflictError(
                        f"{shown(prompt.name)}: version 1 is active, wanted one that has another before it"
                    )
            wanted = await find_version(connection, prompt, version)
        if version == prompt.active_version:
            return prompt
        changed = replace(prompt, active_version=version)
        if wanted.model == self._model_name:
            compiled = await asyncio.to_thread(self._compiler.compile, wanted.source, wanted.slots, wanted.rules)
            await self._claim_pin(RegisteredVersion(changed, wanted, compiled))
        async with self.database.write() as connection:
            await set_prompt(connection, prompt.id, active_version=version)
            details = {"version": version, "previous": prompt.active_version}
            await write_audit(connection, author, action, prompt.id, details)
            await self.database.announce_change(connection)
        await self.registry.refresh()
        return changed

    async def retire(self, author: Author, name_or_id: str) -> Prompt:
        """Give a prompt up: no request finds it any more; a second time changes nothing.

        Raises: NotFoundError: no such prompt; StorageUnavailableError: nothing was written.
        """
        async with self.database.write() as connection:
            prompt = await find_prompt(connection, name_or_id)
            if prompt.retired_at is not None:
                return prompt
            now = self._clock()
            await set_prompt(connection, prompt.id, retired_at=now)
            await write_audit(connection, author, "prompt.retire", prompt.id)
            await self.database.announce_change(connection)
        await self.registry.refresh()
        return replace(prompt, retired_at=now)

    async def set_retention(self, author: Author, name_or_id: str, retention: Retention) -> Prompt:
        """Say how long the active version's blocks are to stay.

        Raises: NotFoundError: no such prompt; ConflictError: it is retired, or cannot be pinned;
        StorageUnavailableError: nothing was written.
        """
        async with self.database.read() as connection:
            prompt = _not_retired(await find_prompt(connection, name_or_id))
        number = prompt.active_version or 0
        entry = self._live(prompt)
        if entry is not None:
            await self._claim_pin(replace(entry, version=replace(entry.version, retention=retention)))
        async with self.database.write() as connection:
            await set_retention(connection, prompt.id, number, retention)
            details = {"pin": retention.pin, "priority": retention.priority, "expires_at": retention.expires_at}
            await write_audit(connection, author, "prompt.retention", prompt.id, {"version": number} | details)
            await self.database.announce_change(connection)
        await self.registry.refresh()
        return prompt

    async def warm(self, author: Author, name_or_id: str) -> WarmState:
        """Compute the active version now, and wait for it as long as a start would.

        Raises: NotFoundError: no such prompt; ConflictError: it is retired, or for another model;
        BackendUnavailableError: no engine serves.
        """
        async with self.database.write() as connection:
            prompt = _not_retired(await find_prompt(connection, name_or_id))
            await write_audit(connection, author, "prompt.warm", prompt.id)
        entry = self._live(prompt)
        if entry is None:
            raise ConflictError(f"{shown(prompt.name)}: its active version is not for the model served here")
        try:
            async with asyncio.timeout(self.warmer.budget_seconds):
                return await self.warmer.warm_now(self.registry.warm_prompt(entry))
        except TimeoutError:
            return WarmState("not_in_time")

    def state(self, prompt: Prompt) -> WarmState | None:
        """Tell how warm a prompt is; None: it is not kept warm here."""
        entry = self._live(prompt)
        return None if entry is None else self.warmer.state(entry.handle)

    def _live(self, prompt: Prompt) -> RegisteredVersion | None:
        return next((entry for entry in self.registry.registered.active if entry.prompt.id == prompt.id), None)

    async def _compile(self, draft: Draft, tenant: str) -> CompiledPrompt:
        if draft.model not in (None, self._model_name):
            raise InvalidRequestError(
                f"model: got {shown(draft.model)}, wanted {self._model_name!r}, the model served here", param="model"
            )
        model = self._backend.model_info()
        compile_draft = partial(self._compiler.compile, tenant=tenant, max_model_len=model.max_model_len)
        compiled = await asyncio.to_thread(compile_draft, draft.source, draft.slots, draft.rules or {})
        check_length(compiled.head, model)
        return compiled

    def _version(self, prompt_id: str, number: int, draft: Draft, compiled: CompiledPrompt) -> PromptVersion:
        model, head = self._backend.model_info(), compiled.head
        num_blocks = head.num_blocks(model.block_size)
        return PromptVersion(
            prompt_id=prompt_id,
            version=number,
            model=self._model_name,
            source=draft.source,
            canonical=canonical_json(compiled.canonical),
            slots=tuple(draft.slots),
            rules=draft.rules or {},
            retention=draft.retention or Retention(),
            token_ids=head.token_ids,
            token_sha256=head.sha256,
            num_blocks=num_blocks,
            num_bytes=num_blocks * model.block_size * int(model.details.get("kv_bytes_per_token", 0)),
            created_at=self._clock(),
        )

    async def _claim_pin(self, entry: RegisteredVersion) -> None:
        """Pin a version that wants it, before anything is stored; where no engine can tell yet it is seen to later.

        Raises: ConflictError: with the numbers.
        """
        if not entry.version.retention.pin or not self._backend.ready():
            return
        try:
            async with asyncio.timeout(self.warmer.budget_seconds):
                state = await self.warmer.claim(self.registry.warm_prompt(entry))
        except TimeoutError:
            return  # it goes on behind, and the prompt's state will tell
        if not state.pinned:
            numbers = f"the prompt has {entry.version.num_blocks} full blocks"
            why = state.detail if state.status == "warm" else f"{state.detail}: {numbers}"
            raise ConflictError(f"retention.pin: cannot be kept, {why}", param="retention.pin")


def _not_retired(prompt: Prompt) -> Prompt:
    if prompt.retired_at is not None:
        raise ConflictError(f"{shown(prompt.name)} is retired, wanted a prompt that is not")
    return prompt
