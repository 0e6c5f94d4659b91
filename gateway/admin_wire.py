"""Bodies and queries of the admin API: what they may hold, and how a wrong one is refused.

Pydantic reads them, for they are rare; its findings are said as everywhere: the field, what came, what was wanted.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict, Field, ValidationError, WithJsonSchema
from pydantic_core import ErrorDetails
from starlette.requests import Request

from gateway.errors import InvalidRequestError, shown
from gateway.storage.audit import Author
from gateway.storage.rows import PageSpan
from gateway.validation import wanted

MAX_NAME_CHARS = 100
MAX_MODELS = 100
_MAX_PAGE = 1000
_FIRST_YEAR, _LAST_YEAR = 1970, 9998
"""Of times that can be written down in any zone."""
_ID = re.compile(r"(?:tnt|key|pmt)_")
_MAX_AMOUNT = 10**15
_DAY_SECONDS = 86400.0
_YEAR_SECONDS = 366 * _DAY_SECONDS

T = TypeVar("T", bound=BaseModel)


def _plain(text: str) -> str:
    """Anything that is printed as it is: no control characters, nothing invisible, no space at the ends."""
    if not text.isprintable() or text != text.strip():
        raise ValueError("printable characters, no space at the ends")
    return text


def _not_reserved(name: str) -> str:
    """`public` and `*` mean everybody, and what looks like an id is taken for one."""
    if name in ("public", "*") or _ID.match(name):
        raise ValueError("a name other than public and *, and not like an id")
    return name


def _of_this_age(moment: datetime) -> datetime:
    if not _FIRST_YEAR <= moment.year <= _LAST_YEAR:
        raise ValueError(f"a time between the years {_FIRST_YEAR} and {_LAST_YEAR}")
    return moment


Name = Annotated[str, Field(min_length=1, max_length=MAX_NAME_CHARS), AfterValidator(_plain)]
Moment = Annotated[
    AwareDatetime,
    AfterValidator(_of_this_age),
    WithJsonSchema(
        {"anyOf": [{"type": "string", "format": "date-time"}, {"type": "number", "description": "Seconds since 1970."}]}
    ),
]
NewName = Annotated[Name, AfterValidator(_not_reserved)]


class Body(BaseModel):
    """Base of all of them: an unknown field is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class SpanQuery(Body):
    """A span of time; by default the last day."""

    since: Moment | None = None
    until: Moment | None = None

    def bounds(self, now: float) -> tuple[float, float]:
        """Read it, in seconds since 1970. Raises: InvalidRequestError: it ends before it begins."""
        until = self.until.timestamp() if self.until else now
        since = self.since.timestamp() if self.since else until - _DAY_SECONDS
        if since >= until:
            wanted = f"a time before until ({iso_time(until)})"
            raise InvalidRequestError(f"since: got {iso_time(since)}, wanted {wanted}", param="since")
        return since, until


class NewTenantBody(Body):
    """`POST /tenants`."""

    name: NewName


class NewKeyBody(Body):
    """`POST /keys`."""

    tenant: Name
    name: Name | None = None
    expires_at: Moment | None = None
    models: Annotated[list[Name], Field(min_length=1, max_length=MAX_MODELS)] | None = None


class RotateBody(Body):
    """`POST /keys/{id}/rotate`."""

    grace_seconds: Annotated[float, Field(ge=0, le=_YEAR_SECONDS, allow_inf_nan=False)] = 0.0


class ExpireBody(Body):
    """`POST /keys/{id}/expire`; null: never."""

    expires_at: Moment | None


_Amount = Annotated[int, Field(ge=1, le=_MAX_AMOUNT, strict=True)] | None


class LimitFields(Body):
    """What is to change; null: no limit."""

    requests_per_minute: _Amount = None
    requests_per_day: _Amount = None
    tokens_per_minute: _Amount = None
    tokens_per_day: _Amount = None
    concurrency: _Amount = None


class LimitsBody(Body):
    """`PATCH /tenants/{id}` and `/keys/{id}`; null: as if none had ever been chosen."""

    limits: LimitFields | None

    @property
    def choice(self) -> dict[str, int | None] | None:
        """The fields that came."""
        return None if self.limits is None else self.limits.model_dump(exclude_unset=True)


class PageQuery(Body):
    """What every list takes."""

    limit: Annotated[int, Field(ge=1, le=_MAX_PAGE)] = 100
    cursor: Annotated[str, Field(max_length=40), AfterValidator(_plain)] | None = None

    @property
    def span(self) -> PageSpan:
        """Which page."""
        return PageSpan(self.limit, self.cursor)


class KeysQuery(PageQuery):
    """`GET /keys`."""

    tenant: Name | None = None


class NumberedPageQuery(PageQuery):
    """Of lists whose entries are numbered."""

    cursor: Annotated[str, Field(pattern=r"^[0-9]{1,18}$")] | None = None


async def read_body(request: Request, kind: type[T]) -> T:
    """Read a JSON body; an empty one counts as an object without fields.

    Raises: InvalidRequestError: names the first field that is wrong.
    """
    try:
        return kind.model_validate_json(await request.body() or b"{}")
    except ValidationError as error:
        raise _refusal(error.errors()[0], kind) from error


def read_query(request: Request, kind: type[T]) -> T:
    """Read the query of a URL.

    Raises: InvalidRequestError: names the first field that is wrong.
    """
    fields = request.query_params
    try:
        for name in fields:
            if len(fields.getlist(name)) > 1:
                raise InvalidRequestError(f"{name}: given twice", param=name)
        return kind.model_validate(dict(fields))
    except ValidationError as error:
        raise _refusal(error.errors()[0], kind) from error


def future(field: str, moment: datetime | None, now: float) -> float | None:
    """Turn a time into seconds since 1970.

    Raises: InvalidRequestError: it is past.
    """
    if moment is None:
        return None
    seconds = moment.timestamp()
    if seconds <= now:
        raise InvalidRequestError(
            f"{field}: got {iso_time(seconds)}, wanted a time to come: it is {iso_time(now)}", param=field
        )
    return seconds


def author_of(request: Request) -> Author:
    """Name who writes: there is one admin key, so what they use and the address are what tells operators apart."""
    host = request.client.host if request.client else "unknown"
    state = request.scope["state"]
    return Author(f"{state.get('operator', 'admin')}@{host}"[:100], state["request_id"])


def iso_time(seconds: float | None) -> str | None:
    """Print a time as RFC 3339 does, in UTC."""
    if seconds is None:
        return None
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def page_body(entries: Sequence[dict[str, Any]], next_cursor: str | None) -> dict[str, Any]:
    """Print a page."""
    return {"object": "list", "data": list(entries), "has_more": next_cursor is not None, "next_cursor": next_cursor}


def _refusal(details: ErrorDetails, kind: type[BaseModel]) -> InvalidRequestError:
    field = ""
    for step in details["loc"]:
        field += f"[{step}]" if isinstance(step, int) else f".{step}" if field else step
    if details["type"] == "json_invalid":
        return InvalidRequestError(f"the body is not valid JSON in UTF-8: {details['msg'].partition(': ')[2]}")
    if not field:
        return InvalidRequestError(f"the body is {shown(details['input'])}, wanted an object")
    if details["type"] == "missing":
        return InvalidRequestError(f"{field}: missing", param=field)
    if details["type"] == "extra_forbidden" and len(details["loc"]) > 1:
        return InvalidRequestError(f"{field}: unknown", param=field)
    if details["type"] == "extra_forbidden":
        return InvalidRequestError(f"{field}: unknown, wanted one of {', '.join(kind.model_fields)}", param=field)
    return InvalidRequestError(f"{field}: got {shown(details['input'])}, wanted {wanted(details)}", param=field)
