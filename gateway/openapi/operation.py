"""One operation of the interface: what it takes, what it gives, which errors it can end in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from pydantic import BaseModel

from gateway.openapi.schema import Schema


class Access(Enum):
    """Who may call it."""

    EVERYBODY = "everybody"
    KEY = "ApiKey"
    ADMIN = "AdminKey"


@dataclass(frozen=True, slots=True)
class Given:
    """An answer that is no error."""

    schema: Schema | None
    """None: it has no body."""
    media_type: str = "application/json"
    stream: str | None = None
    """The schema of what comes as server-sent events instead, where the client asks for a stream."""
    headers: tuple[str, ...] = ()
    """Of the ones in the components, beside those that every answer has."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One of them."""

    method: str
    path: str
    """As OpenAPI writes it: `/v1/models/{model_id}`."""
    summary: str
    access: Access
    given: Mapping[int, Given]
    errors: tuple[type[Exception], ...] = ()
    """Beside those that follow from `access` and from its having a body."""
    body: Schema | type[BaseModel] | None = None
    query: type[BaseModel] | None = None
    passes_on: bool = False
    """Whatever a server behind this one answers comes through, errors too."""
