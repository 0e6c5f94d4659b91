"""Where an upstream is and what it wants to see of us; read from flags, environment and file by the settings."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, SecretStr
from pydantic_settings import NoDecode

_URL = re.compile(r"https?://[^\s/?#@]+(/[^\s?#]*)?")
_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")


def _base_url(value: str) -> str:
    match = _URL.fullmatch(value)
    if match is None:
        raise ValueError("http://HOST:PORT or https://HOST/v1, without user, query or fragment")
    return value.rstrip("/") if (match[1] or "/").strip("/") else f"{value.rstrip('/')}/v1"


def _printable(value: SecretStr) -> SecretStr:
    text = value.get_secret_value()
    if not text.isascii() or not text.isprintable() or text != text.strip() or not text.strip("*"):
        raise ValueError("printable ASCII without space at the ends, and not the mask that --print-config prints")
    return value


HeaderValue = Annotated[SecretStr, AfterValidator(_printable)]


def _header_name(value: str) -> str:
    if _HEADER_NAME.fullmatch(value) is None:
        raise ValueError("the name of an HTTP header")
    return value.lower()


class UpstreamOptions(BaseModel):
    """One upstream."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    url: Annotated[str, AfterValidator(_base_url)]
    """As an SDK's base URL; without a path it is `/v1`."""
    key: HeaderValue | None = None
    """Sent as a bearer; None: that of all upstreams."""
    headers: dict[Annotated[str, AfterValidator(_header_name)], HeaderValue] = {}
    """Sent with each request, in the place of the client's."""


def _as_list(value: Any) -> Any:
    """Read one URL, several with commas between them (as in the environment), or a list of URLs and mappings."""
    if isinstance(value, str):
        value = [entry.strip() for entry in value.split(",") if entry.strip()]
    if isinstance(value, list | tuple):
        return [{"url": entry} if isinstance(entry, str) else entry for entry in value]
    return value


Upstreams = Annotated[tuple[UpstreamOptions, ...], NoDecode, BeforeValidator(_as_list)]
