"""What is registered for the served model, ready for requests: found by name, by content, and held against traffic."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gateway.auth import Identity
from gateway.chat_request import PromptReference
from gateway.errors import NotFoundError, shown
from gateway.prompts.compiler import CompiledPrompt
from gateway.prompts.drift import WatchedPrompt
from gateway.prompts.matching import HeadIndex, RegisteredHead
from gateway.prompts.versions import Prompt, PromptVersion
from gateway.tokenizer import TokenArray

_MAX_JOINED = 64
"""Sets of documents whose tokens are kept: each takes some renderings of all of them, and clients choose the sets."""


@dataclass(frozen=True, slots=True, eq=False)
class RegisteredVersion:
    """One version of a prompt, compiled."""

    prompt: Prompt
    version: PromptVersion
    compiled: CompiledPrompt

    @property
    def handle(self) -> str:
        """Its name in the engine."""
        return f"{self.prompt.id}:{self.version.version}"

    @property
    def is_active(self) -> bool:
        """Whether it is the one that is kept warm, and that a request gets which names none."""
        return self.version.version == self.prompt.active_version

    @property
    def owner(self) -> str | None:
        """The tenant that may use it; None: everybody."""
        return None if self.prompt.is_public else self.prompt.tenant_id

    @property
    def identity(self) -> Identity:
        """In whose name it is computed ahead of use."""
        return Identity(self.prompt.tenant_id)


class RegisteredPrompts:
    """All versions of all prompts that are not retired. A change of them makes another one."""

    def __init__(self, versions: Iterable[RegisteredVersion] = ()) -> None:
        # Of versions that begin alike a request counts for the active one.
        self._versions = sorted(versions, key=lambda entry: not entry.is_active)
        self.heads = HeadIndex(
            RegisteredHead(entry.prompt.id, entry.version.version, entry.owner, entry.compiled.head.token_ids)
            for entry in self._versions
        )
        self._joined: set[tuple[str, ...]] = set()

    @property
    def active(self) -> list[RegisteredVersion]:
        """The active version of each prompt."""
        return [entry for entry in self._versions if entry.is_active]

    def watched(self) -> list[WatchedPrompt]:
        """What traffic is held against. Not prompts with slots: whoever has them filled in here cannot drift."""
        return [
            WatchedPrompt(
                entry.prompt.id, entry.version.version, entry.owner, entry.compiled.raw, entry.compiled.canonical
            )
            for entry in self.active
            if not entry.compiled.slots
        ]

    def may_join(self, entries: Sequence[RegisteredVersion]) -> bool:
        """Whether the caller is the one to `join` these: they are several, and nobody else did or does."""
        handles = tuple(entry.handle for entry in entries)
        if len(entries) < 2 or len(self._joined) == _MAX_JOINED or handles in self._joined:
            return False
        self._joined.add(handles)
        return True

    def join(self, entries: Sequence[RegisteredVersion], token_ids: TokenArray) -> None:
        """Know the tokens that a prompt begins with which has these public ones in front of all else, in order."""
        first = entries[0]
        self.heads.add(RegisteredHead(first.prompt.id, first.version.version, None, token_ids))

    def versions_of(self, name: str, tenant: str) -> list[RegisteredVersion]:
        """Return all versions of what an id or a name means to a tenant: of its own prompts before public ones."""
        meant = [
            entry
            for entry in self._versions
            if name in (entry.prompt.id, entry.prompt.name) and entry.owner in (tenant, None)
        ]
        prompt = min((entry.prompt for entry in meant), key=lambda p: (p.id != name, p.is_public), default=None)
        return [entry for entry in meant if prompt is not None and entry.prompt.id == prompt.id]

    def find(self, reference: PromptReference, tenant: str) -> RegisteredVersion:
        """Look up what a request names: an id, or a name, of the tenant's own prompts before public ones.

        Raises: NotFoundError: nothing of this name that the tenant may use, or no such version.
        """
        named = self.versions_of(reference.prompt, tenant)
        if not named:
            raise NotFoundError(
                f"prompt.id: got {shown(reference.prompt)}, wanted the id or name of a registered prompt",
                param="prompt.id",
            )
        prompt = named[0].prompt
        version = prompt.active_version if reference.version is None else reference.version
        for entry in named:
            if entry.version.version == version:
                return entry
        raise NotFoundError(
            f"prompt.version: got {version}, wanted a version of {shown(prompt.name)} for the model served here",
            param="prompt.version",
        )
