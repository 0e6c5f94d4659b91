"""The admin API as the commands see it: JSON objects, pages put together, and one exception for all that goes wrong."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote, urlsplit

import httpx
import orjson

from gateway.auth import is_loopback

Json = dict[str, Any]

MAX_PAGE = 1000
_JSON_LINES = "application/jsonl"
_CONNECT_SECONDS = 10
_ANSWER_SECONDS = 300
"""A prompt that is warmed is computed first, maybe behind others."""


class AdminError(Exception):
    """The gateway refused or did not answer, or a file cannot be read: one line that names the field at fault."""


class AdminClient:
    """One gateway and the key to its admin API; use it as a context manager.

    Every call raises AdminError.
    """

    def __init__(self, url: str, admin_key: str) -> None:
        self._url = url
        self._http = httpx.Client(
            base_url=f"{url}/admin/v1",
            headers={"authorization": f"Bearer {admin_key}"},
            timeout=httpx.Timeout(_ANSWER_SECONDS, connect=_CONNECT_SECONDS),
            # The environment's proxy has no business with this machine's own server, nor with its key.
            trust_env=not is_loopback(urlsplit(url).hostname or ""),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.close()

    def get(self, *path: str, query: Mapping[str, Any] | None = None) -> Json:
        """Read an object; `path` is given in segments, which may hold any character."""
        return self._send("GET", path, params=_given(query or {}))

    def post(self, *path: str, body: Mapping[str, Any] | None = None) -> Json:
        """Make or change something. Fields that are None are not sent."""
        return self._send("POST", path, content=_dumped(_given(body or {})))

    def put(self, *path: str, body: Mapping[str, Any]) -> Json:
        """Replace something; None is sent, as null."""
        return self._send("PUT", path, content=_dumped(body))

    def patch(self, *path: str, body: Mapping[str, Any]) -> Json:
        """Change the fields that are given; None is sent, as null."""
        return self._send("PATCH", path, content=_dumped(body))

    def delete(self, *path: str, query: Mapping[str, Any] | None = None) -> Json:
        """End or clear something."""
        return self._send("DELETE", path, params=_given(query or {}))

    def pages(self, *path: str, query: Mapping[str, Any] | None = None, limit: int | None = None) -> Json:
        """Read a list, up to `limit` entries (None: all of them), as if it came in one page."""
        query = dict(query or {})
        entries: list[Any] = []
        while True:
            if limit is not None:
                query["limit"] = min(limit - len(entries), MAX_PAGE)
            page = self.get(*path, query=query)
            if not _is_list_of_objects(page.get("data")):
                raise AdminError(
                    f"{self._url}: got {_joined(path)} without a list in it; another version, or no gateway"
                )
            entries += page["data"]
            query["cursor"] = page.get("next_cursor")
            if query["cursor"] is None or (limit is not None and len(entries) >= limit):
                return {**page, "data": entries}

    def lines(self, *path: str, query: Mapping[str, Any]) -> Iterator[bytes]:
        """Read an endless answer, line by line; each with its line end."""
        rest = b""
        try:
            with self._http.stream("GET", _joined(path), params=_given(query)) as answer:
                if not answer.is_success or not answer.headers.get("content-type", "").startswith(_JSON_LINES):
                    answer.read()
                    raise AdminError(self._refusal(answer))
                for chunk in answer.iter_bytes():
                    *whole, rest = (rest + chunk).split(b"\n")
                    yield from (line + b"\n" for line in whole)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise AdminError(self._failure(error)) from error
        if rest:
            raise AdminError(f"{self._url}: the answer ended within a line; what came before it is whole")

    def _send(self, method: str, path: tuple[str, ...], **parts: Any) -> Json:
        try:
            answer = self._http.request(method, _joined(path), **parts)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise AdminError(self._failure(error)) from error
        body = _object(answer)
        if not answer.is_success or body is None:
            raise AdminError(self._refusal(answer))
        return body

    def _refusal(self, answer: httpx.Response) -> str:
        error = (_object(answer) or {}).get("error")
        if not isinstance(error, dict) or not isinstance(error.get("message"), str):
            return f"{self._url}: got status {answer.status_code} and no answer of a gateway; is the address right?"
        message, param, code = " ".join(error["message"].split()), error.get("param"), error.get("code")
        if answer.status_code == httpx.codes.UNAUTHORIZED:
            return f"PREFIXGATE_ADMIN_KEY: is not the admin key of {self._url}"
        if code == "admin_disabled":
            return f"{self._url}: {message}"
        if code == "unknown_path":
            return f"{self._url}: {message}: {answer.request.url.raw_path.decode()}; its version is another, or it keeps no database"
        if param and param not in message:
            message = f"{param}: {message}"
        if answer.is_server_error and (request_id := answer.headers.get("x-request-id")):
            message += f" (request {request_id})"
        return message

    def _failure(self, error: Exception) -> str:
        reason = " ".join(str(error).split()) or type(error).__name__
        if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
            return (
                f"{self._url}: nobody answers ({reason}); start a gateway with 'PREFIXGATE_ADMIN_KEY=… prefixgate serve', "
                "or say with --url or PREFIXGATE_URL where one is"
            )
        if isinstance(error, httpx.ReadTimeout):
            return f"{self._url}: no answer within {_ANSWER_SECONDS} s"
        return f"{self._url}: {reason}"


def _joined(path: tuple[str, ...]) -> str:
    """Quote the segments; dots too where they are all of one, for those mean another path."""
    quoted = (quote(segment, safe="") for segment in path)
    return "/" + "/".join(segment.replace(".", "%2E") if segment in (".", "..") else segment for segment in quoted)


def _dumped(body: Mapping[str, Any]) -> bytes:
    # Not orjson: a number beyond 64 bits, or none at all, is for the gateway to refuse, by the field's name.
    return json.dumps(body).encode()


def _given(fields: Mapping[str, Any]) -> Json:
    return {name: value for name, value in fields.items() if value is not None}


def _is_list_of_objects(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(entry, dict) for entry in value)


def _object(answer: httpx.Response) -> Json | None:
    try:
        body = orjson.loads(answer.content)
    except orjson.JSONDecodeError:
        return None
    return body if isinstance(body, dict) else None
