"""`prefixgate serve`: one gateway and its engine, until a signal comes."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import shlex
import socket
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.util import find_spec
from types import FrameType
from typing import Protocol

import orjson
import uvicorn
from fastapi import FastAPI

from gateway.app import create_app
from gateway.auth import KeyStore, is_loopback
from gateway.errors import StorageUnavailableError
from gateway.log import configure_logging
from gateway.model_files import ModelFilesError
from gateway.options import parse_options
from gateway.protocol import HttpProtocol
from gateway.settings import Settings
from gateway.storage.migrate import MigrationError
from gateway.storage.opening import DatabaseSetupError
from gateway.storage.store import Store, open_store, prepare_database
from gateway.template import ChatTemplateError
from gateway.upstream.app import create_upstream_app, pool_of

logger = logging.getLogger(__name__)

GRACE_SECONDS = 10
"""For answers under way when a signal comes; then they end with an error."""
_LAST_WORDS_SECONDS = 2.0
"""For those errors to reach the clients; connections that still take nothing are cut."""
_POLL_SECONDS = 0.1
_ENGINE_PACKAGES = ("torch", "transformers", "llguidance", "safetensors")
"""Without which the engine's process would not come up."""
_NO_ENGINE = (
    "prefixgate serve: no engine is installed here: install the extra `engine` (pip install 'prefixgate[engine]'), "
    "or give --upstream URL"
)


def main(argv: Sequence[str]) -> int:
    """Serve a model."""
    settings = parse_options(argv)
    if not settings.upstream and not all(map(find_spec, _ENGINE_PACKAGES)):
        print(_NO_ENGINE, file=sys.stderr)
        return 2
    configure_logging(settings.log_format)
    # Prompts are tokenized one at a time; a pool of threads would only make forking the engine unsafe.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    serve = _serve_upstreams if settings.upstream else _serve_model
    try:
        place = asyncio.run(prepare_database(settings))
        print(f"prefixgate keeps keys, prompts and the request log in {place}", file=sys.stderr, flush=True)
        return serve(settings, open_store(settings))
    except StorageUnavailableError as error:
        print(f"prefixgate serve: the database cannot be used: {error.cause}", file=sys.stderr)
        return 1
    except (DatabaseSetupError, MigrationError, ModelFilesError, ChatTemplateError) as error:
        print(f"prefixgate serve: {error}", file=sys.stderr)
        return 1


def _serve_model(settings: Settings, store: Store) -> int:
    # Imported here, so that a gateway without an engine of its own does without the engine's packages.
    from gateway.backends.local.models import local_backend, resolve_model

    files = resolve_model(settings)
    backend = local_backend(settings, files)
    app = create_app(settings, backend, files, store=store)
    return run(app, backend, settings, model_name=files.name, keys=store.ring)


def _serve_upstreams(settings: Settings, store: Store) -> int:
    pool = pool_of(settings)
    app = create_upstream_app(settings, pool, store=store)
    name = ", ".join(upstream.name for upstream in pool.upstreams)
    return run(app, pool, settings, model_name=name, keys=store.ring, example=_models_line)


class Servant(Protocol):
    """What answers behind a gateway: an engine, or upstreams."""

    def ready(self) -> bool:
        """Whether requests are answered now."""
        ...

    def state(self) -> str:
        """Say how it is; what begins with `failed` never gets better."""
        ...

    async def stop(self) -> None:
        """End the answers that run, each with an error of its own."""
        ...


def run(
    app: FastAPI,
    backend: Servant,
    settings: Settings,
    *,
    model_name: str,
    keys: KeyStore,
    grace_seconds: float = GRACE_SECONDS,
    example: Callable[[str, str], str] | None = None,
) -> int:
    """Listen until a signal comes or the engine turns out never to work.

    Args:
        app: what answers.
        backend: what it stands in front of; stopped before it.
        settings: where to listen.
        model_name: what is served, for people.
        keys: whether a key is needed, for the notice.
        grace_seconds: for answers under way when a signal comes.
        example: a first command to try, of the gateway's address and the name; by default a chat.

    Returns: the exit status.
    """
    config = uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        loop="uvloop",
        http=HttpProtocol,
        ws="none",
        lifespan="on",
        access_log=False,
        server_header=False,
        log_config=None,
        timeout_graceful_shutdown=GRACE_SECONDS,  # never needed: when uvicorn begins to wait, all answers have ended
    )
    server = _Server(
        config,
        backend,
        model_name,
        keys,
        grace_seconds,
        app.state.is_settled,
        app.state.end_live,
        example or _curl_line,
    )
    with suppress(KeyboardInterrupt):  # uvicorn raises the signal again, after it shut down in order
        server.run()
    return 1 if server.engine_failed or not server.started else 0


class _Server(uvicorn.Server):
    """Says when and where it serves, and ends every answer before it ends itself."""

    def __init__(
        self,
        config: uvicorn.Config,
        backend: Servant,
        model_name: str,
        keys: KeyStore,
        grace_seconds: float,
        is_settled: Callable[[], bool],
        end_live: Callable[[], None],
        example: Callable[[str, str], str],
    ) -> None:
        super().__init__(config)
        self._example = example
        self._is_settled = is_settled
        self._end_live = end_live
        self.engine_failed = False
        self._grace_seconds = grace_seconds
        self._is_hurried = False
        self._backend = backend
        self._model_name = model_name
        self._keys = keys
        self._announcement: asyncio.Task[None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._announcement = asyncio.create_task(self._announce())

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self.should_exit:
            self._is_hurried = True  # not uvicorn's force_exit, which leaves the engine behind
        else:
            super().handle_exit(sig, frame)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if self._announcement is not None:
            self._announcement.cancel()
        for listener in self.servers:
            listener.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        self._end_live()  # such an answer would never end by itself
        deadline = time.monotonic() + self._grace_seconds
        # An event that a signal's handler sets would not wake the loop.
        while self.server_state.tasks and not self._is_hurried and time.monotonic() < deadline:  # noqa: ASYNC110 -- see above
            await asyncio.sleep(_POLL_SECONDS)
        # While the clients are still there: every generation that runs ends with an error of its own.
        await self._backend.stop()
        await self._cut_off()
        await super().shutdown(sockets)

    async def _cut_off(self) -> None:
        """Let the last words out, then cut what is left, for a task that uvicorn cancels leaves a traceback."""
        deadline = time.monotonic() + _LAST_WORDS_SECONDS
        while self.server_state.connections and time.monotonic() < deadline:  # noqa: ASYNC110 -- uvicorn sets none
            await asyncio.sleep(_POLL_SECONDS)
        for connection in list(self.server_state.connections):
            if connection.transport is not None:
                connection.transport.abort()

    async def _announce(self) -> None:
        base_url = self._base_url()
        print(f"prefixgate listens on {base_url}; waiting for {self._model_name}", file=sys.stderr, flush=True)
        while not (self._backend.ready() and self._is_settled()):
            if self._backend.state().startswith("failed"):
                print(f"prefixgate serve: the engine {self._backend.state()}", file=sys.stderr, flush=True)
                self.engine_failed = self.should_exit = True
                return
            await asyncio.sleep(_POLL_SECONDS)
        gc.collect()
        gc.freeze()  # what lives now lives on; no collection need walk it again
        print(_key_notice(self.config.host, has_keys=self._keys.has_keys()), file=sys.stderr)
        print(
            f"prefixgate serves {self._model_name} on {base_url}\nTry:\n  {self._example(base_url, self._model_name)}",
            flush=True,
        )

    def _base_url(self) -> str:
        """Give the address with the port that was taken in the end."""
        host = self.config.host
        port = self.servers[0].sockets[0].getsockname()[1]
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _key_notice(host: str, *, has_keys: bool) -> str:
    if has_keys:
        return "API keys exist: /v1 needs one."
    if is_loopback(host):
        return "NOTICE: no API key exists. Everybody on this machine may use /v1, and any key that is sent is ignored."
    return f"WARNING: {host} is a public address and no API key exists. /v1 answers everybody 401 until one is made."


def _curl_line(base_url: str, model_name: str) -> str:
    messages = [
        {"role": "system", "content": "You are a helpful assistant."},
        {"role": "user", "content": "Name the capital of France."},
    ]
    body = orjson.dumps({"model": model_name, "messages": messages, "temperature": 0}).decode()
    return f"curl {base_url}/v1/chat/completions -H 'content-type: application/json' -d {shlex.quote(body)}"


def _models_line(base_url: str, _: str) -> str:
    return f"curl {base_url}/v1/models"
