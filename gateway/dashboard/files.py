"""The files that make the page: ours, and plotly's script out of the installed distribution. Nothing else is reachable."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import Callable, Iterator, Mapping
from hashlib import sha256
from importlib import metadata, resources
from importlib.resources.abc import Traversable
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response

from gateway.errors import NotFoundError

PLOTLY_PATH = "vendor/plotly.min.js"

_MEDIA_TYPES: Mapping[str, str] = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}


class WebFile:
    """One of them. It is compressed when it is first asked for, in a thread, and then kept so."""

    def __init__(self, name: str, mark: str, read: Callable[[], bytes]) -> None:
        self._media_type = _MEDIA_TYPES[name.rpartition(".")[2]]
        self._etag = f'W/"{mark}"'  # weak: the same for the file and for the compressed file
        self._read = read
        self._packed: bytes | None = None
        self._packing = asyncio.Lock()

    async def answer(self, request: Request) -> Response:
        """Send it, or say that the browser has it."""
        headers = {"etag": self._etag, "cache-control": "no-cache", "vary": "accept-encoding"}
        if _matches(request.headers.get("if-none-match", ""), self._etag):
            return Response(status_code=304, headers=headers)
        is_packed = _takes_gzip(request.headers.get("accept-encoding", ""))
        if is_packed:
            headers["content-encoding"] = "gzip"
        if request.method == "HEAD":
            response = Response(headers=headers, media_type=self._media_type)
            del response.headers["content-length"]  # not known before it was compressed
            return response
        body = await self._compressed() if is_packed else await asyncio.to_thread(self._read)
        return Response(body, headers=headers, media_type=self._media_type)

    async def _compressed(self) -> bytes:
        async with self._packing:
            if self._packed is None:
                self._packed = await asyncio.to_thread(lambda: gzip.compress(self._read(), mtime=0))
            return self._packed


class PageFiles:
    """All of them by their path below `/dashboard/`. Ours are read once, now."""

    def __init__(self) -> None:
        static = resources.files("gateway.dashboard") / "static"
        self._files = {path: _own_file(path, content) for path, content in _contents(static)}

    async def answer(self, request: Request) -> Response:
        """Send the file of a path.

        Raises: NotFoundError: there is none, or plotly is not installed.
        """
        path = request.path_params.get("path", "index.html")
        if path == PLOTLY_PATH and path not in self._files:
            self._files[path] = _plotly_file()
        if path not in self._files:
            raise NotFoundError("the dashboard has no such file")
        return await self._files[path].answer(request)


def _contents(folder: Traversable, prefix: str = "") -> Iterator[tuple[str, bytes]]:
    """Give every file of a kind that we know, with its path."""
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _contents(entry, f"{prefix}{entry.name}/")
        elif entry.name.rpartition(".")[2] in _MEDIA_TYPES:
            yield prefix + entry.name, entry.read_bytes()


def _own_file(path: str, content: bytes) -> WebFile:
    return WebFile(path, sha256(content).hexdigest()[:16], lambda: content)


def _plotly_file() -> WebFile:
    """Find the script in the distribution, of which nothing is imported.

    Raises: NotFoundError: it is not installed, or has no such file.
    """
    try:
        distribution = metadata.distribution("plotly")
        file = Path(str(distribution.locate_file("plotly/package_data/plotly.min.js")))
        mark = f"{distribution.version}-{file.stat().st_size}"
    except (metadata.PackageNotFoundError, OSError) as error:
        raise NotFoundError("charts need the Python distribution `plotly`, which is not installed here") from error
    return WebFile(PLOTLY_PATH, mark, file.read_bytes)


def _matches(if_none_match: str, etag: str) -> bool:
    return any(entry.strip() in (etag, "*") for entry in if_none_match.split(","))


def _takes_gzip(accept_encoding: str) -> bool:
    for entry in accept_encoding.split(","):
        name, _, weight = entry.partition(";")
        if name.strip() == "gzip":
            return weight.replace(" ", "") not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
    return False
