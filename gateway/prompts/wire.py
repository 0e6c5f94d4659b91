"""Bodies and answers of `/admin/v1/prompts`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, Any, Literal

import orjson
from pydantic import AfterValidator, Field

from gateway.admin_wire import Body, Moment, Name, NewName, PageQuery, SpanQuery, future, iso_time
from gateway.prompts.compiler import source_of
from gateway.prompts.drift import Variant
from gateway.prompts.operator import Draft
from gateway.prompts.versions import Prompt, PromptVersion, Retention
from gateway.prompts.warming import WarmState

Json = dict[str, Any]

_MAX_PRIORITY = 1000
_MAX_SLOTS = 100
_MAX_VERSION = 2**31 - 1

SlotName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,63}$")]
VersionNumber = Annotated[int, Field(ge=1, le=_MAX_VERSION)]


class RetentionBody(Body):
    """`PUT /prompts/{id}/retention`; what is left out is off."""

    pin: Annotated[bool, Field(strict=True)] = False
    priority: Annotated[int, Field(ge=0, le=_MAX_PRIORITY, strict=True)] = 0
    expires_at: Moment | None = None

    def retention(self, field: str, now: float) -> Retention:
        """Read it. Raises: InvalidRequestError: it ends in the past."""
        return Retention(self.pin, self.priority, future(f"{field}expires_at", self.expires_at, now))


class VersionBody(Body):
    """`POST /prompts/{id}/versions`."""

    text: Annotated[str, Field(min_length=1)] | None = None
    messages: list[Json] | None = None
    tools: list[Json] | None = None
    model: Name | None = None
    slots: Annotated[list[SlotName], Field(max_length=_MAX_SLOTS)] | None = None
    rules: dict[str, Literal["on", "audit", "off"]] | None = None
    retention: RetentionBody | None = None
    activate: Annotated[bool, Field(strict=True)] = False

    def draft(self, now: float) -> Draft:
        """Bring it into one form. Raises: InvalidRequestError: text and messages, or neither."""
        retention = None if self.retention is None else self.retention.retention("retention.", now)
        slots = tuple(dict.fromkeys(self.slots or ()))
        return Draft(source_of(self.text, self.messages, self.tools), slots, self.rules, self.model, retention)


def _of_a_path(name: str) -> str:
    if "/" in name:
        raise ValueError("a name without /, for it stands in paths")
    return name


class NewPromptBody(VersionBody):
    """`POST /prompts`; its version is active in any case."""

    name: Annotated[NewName, AfterValidator(_of_a_path)]
    scope: Name | None = None
    activate: Literal[True] = True


class ActivateBody(Body):
    """`POST /prompts/{id}/activate`."""

    version: VersionNumber


class PromptsQuery(PageQuery):
    """`GET /prompts`."""

    tenant: Name | None = None
    retired: bool = False


class DiffQuery(Body):
    """`GET /prompts/{id}/diff`."""

    old: Annotated[VersionNumber, Field(alias="from")]
    new: Annotated[VersionNumber, Field(alias="to")]


class PromptUsageQuery(PromptsQuery, SpanQuery):
    """`GET /usage/prompts`; by default the last day."""


def prompt_json(prompt: Prompt, state: WarmState | None) -> Json:
    """Print a prompt."""
    return {
        "id": prompt.id,
        "name": prompt.name,
        "tenant": prompt.tenant_id,
        "scope": prompt.scope,
        "active_version": prompt.active_version,
        "created_at": iso_time(prompt.created_at),
        "retired_at": iso_time(prompt.retired_at),
        "warm": None if state is None else asdict(state),
    }


def version_json(version: PromptVersion) -> Json:
    """Print a version without its text."""
    return {
        "version": version.version,
        "model": version.model,
        "slots": list(version.slots),
        "rules": dict(version.rules),
        "retention": asdict(version.retention) | {"expires_at": iso_time(version.retention.expires_at)},
        "token_sha256": version.token_sha256,
        "num_tokens": version.num_tokens,
        "num_blocks": version.num_blocks,
        "num_bytes": version.num_bytes,
        "created_at": iso_time(version.created_at),
    }


def whole_version_json(version: PromptVersion) -> Json:
    """Print all of a version."""
    texts = {"source": dict(version.source), "canonical": orjson.loads(version.canonical)}
    return version_json(version) | texts | {"token_ids": version.token_ids.tolist()}


def drift_json(variants: Sequence[Variant]) -> list[Json]:
    """Print how live traffic differs."""
    return [asdict(variant) | {"last_seen": iso_time(variant.last_seen)} for variant in variants]
