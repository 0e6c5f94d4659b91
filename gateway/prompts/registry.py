"""The registry of a running gateway: prompts in memory, where requests meet them, read again when the database changed."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence

from sqlalchemy import select

from gateway.auth import Identity
from gateway.backends.base import Backend
from gateway.backends.control import HashedPrompt
from gateway.conversation import Conversation
from gateway.errors import InvalidRequestError
from gateway.normalize.modes import EVERY, RuleModes
from gateway.prefix import PrefixHasher
from gateway.prompts.compiler import CompiledPrompt, PromptCompiler
from gateway.prompts.drift import DriftWatch, Variant
from gateway.prompts.registered import RegisteredPrompts, RegisteredVersion
from gateway.prompts.repository import load_prompts, load_versions
from gateway.prompts.versions import Prompt, PromptVersion
from gateway.prompts.warming import Warmer, WarmPrompt
from gateway.storage.database import Database
from gateway.storage.tables import STATE

logger = logging.getLogger(__name__)


class PromptRegistry:
    """Knows the prompts for one served model.

    Attributes:
        registered: what requests are held against now.
    """

    def __init__(
        self,
        database: Database,
        compiler: PromptCompiler,
        modes: RuleModes,
        warmer: Warmer,
        *,
        backend: Backend,
        hasher: PrefixHasher,
        model_name: str,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.registered = RegisteredPrompts()
        self._database = database
        self._compiler = compiler
        self._modes = modes
        self._choices = modes.choices
        self._warmer = warmer
        self._backend = backend
        self._hasher = hasher
        self._model_name = model_name
        self._clock = clock
        self._drift = DriftWatch()
        self._counter = -1
        self._compiled: dict[tuple[str, int], CompiledPrompt] = {}
        self._refreshing = asyncio.Lock()

    async def refresh(self) -> None:
        """Read the prompts again if anything changed, and keep the active ones warm.

        Raises: StorageUnavailableError: the database does not answer; the prompts stay as they were.
        """
        async with self._refreshing:
            async with self._database.read() as connection:
                counter = (await connection.execute(select(STATE.c.change_counter))).scalar_one()
                if counter == self._counter and self._choices is self._modes.choices:
                    return
                prompts = {prompt.id: prompt for prompt in await load_prompts(connection)}
                versions = await load_versions(connection, list(prompts))
            mine = [version for version in versions if version.model == self._model_name]
            if self._choices is not self._modes.choices:  # other modes, other canonical forms
                self._choices, self._compiled = self._modes.choices, {}
            owners = {id: EVERY if prompt.is_public else prompt.tenant_id for id, prompt in prompts.items()}
            self._compiled = await asyncio.to_thread(self._compile, mine, owners)
            self.registered = RegisteredPrompts(
                RegisteredVersion(prompts[version.prompt_id], version, self._compiled[key])
                for version in mine
                if (key := (version.prompt_id, version.version)) in self._compiled
            )
            self._drift.watch(self.registered.watched())
            await self._warmer.keep([self.warm_prompt(entry) for entry in self.registered.active])
            self._counter = counter

    def see(self, raw: Conversation, canonical: Conversation, identity: Identity) -> None:
        """Hold a request that names no prompt against the registered ones."""
        self._drift.see(raw, canonical, tenant=identity.tenant, now=self._clock())

    def drift(self, prompt: Prompt) -> list[Variant]:
        """Return how traffic differs from the active version, the most frequent way first."""
        return self._drift.variants(prompt.id, prompt.active_version or 0)

    def warm_prompt(self, entry: RegisteredVersion) -> WarmPrompt:
        """Describe a version to whoever keeps it warm."""
        token_ids = entry.compiled.head.token_ids
        num_public = len(token_ids) if entry.prompt.is_public else self.registered.heads.num_public_tokens(token_ids)

        def hashed() -> HashedPrompt:
            model = self._backend.model_info()
            return self._hasher.prompt(token_ids, identity=entry.identity, model=model, num_public_tokens=num_public)

        return WarmPrompt(entry.handle, entry.prompt.name, entry.version.retention, num_public, hashed)

    def _compile(
        self, versions: Sequence[PromptVersion], owners: Mapping[str, str]
    ) -> dict[tuple[str, int], CompiledPrompt]:
        """Compile what is new. Always anew from the source: the model's template or the rules may have changed."""
        compiled: dict[tuple[str, int], CompiledPrompt] = {}
        for version in versions:
            key = (version.prompt_id, version.version)
            if key in self._compiled:
                compiled[key] = self._compiled[key]
                continue
            try:
                compiled[key] = self._compiler.compile(
                    version.source, version.slots, version.rules, tenant=owners[version.prompt_id]
                )
            except InvalidRequestError as error:
                logger.warning("version %d of prompt %s cannot be used: %s", version.version, version.prompt_id, error)
                continue
            if compiled[key].head.sha256 != version.token_sha256:
                logger.warning(
                    "version %d of prompt %s has other tokens than when it was registered",
                    version.version,
                    version.prompt_id,
                )
        return compiled
