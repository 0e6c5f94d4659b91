"""Two of the servers that are measured, under the same uvicorn as `prefixgate serve`.

python -m benchmarks.overhead.sides local FOLDER [flags of serve]     the gateway, with an engine that answers at once
python -m benchmarks.overhead.sides bare [flags of serve]             an application that answers a constant
"""

from __future__ import annotations

import asyncio
import itertools
import os
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from gateway.app import create_app
from gateway.auth import NoKeys
from gateway.backends.base import Admission, BackendSnapshot, GenerationRequest, ModelInfo, TokenBatch
from gateway.commands.serve import run
from gateway.disconnect import read_body
from gateway.log import configure_logging
from gateway.model_files import ModelFiles
from gateway.options import parse_options
from gateway.storage.store import open_store, prepare_database
from gateway.tokenizer import Tokenizer

MODEL = "mock"
BLOCK_SIZE = 16
AT_ONCE_TOKENS = 16
"""Answers up to here are one batch; longer ones come token by token, each in an iteration of the loop of its own."""
_CONSTANT = b'{"id":"chatcmpl-mock","object":"chat.completion","model":"mock","choices":[]}'


class InstantBackend:
    """What serving asks of a backend; the whole head of every prompt is cached, and every token is there already."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._words = tokenizer.encode(" The quick brown fox jumps over the lazy dog and runs away").tolist()
        self._info = ModelInfo(8192, BLOCK_SIZE, 7, 1, {"model": MODEL}, frozenset())

    async def start(self) -> None:
        """Nothing to start."""

    async def stop(self) -> None:
        """Nothing to stop."""

    def ready(self) -> bool:
        """Always."""
        return True

    def state(self) -> str:
        """Always the same."""
        return "ready"

    def model_info(self) -> ModelInfo:
        """Facts of no model."""
        return self._info

    async def snapshot(self) -> BackendSnapshot:
        """Nothing to see."""
        return BackendSnapshot(blocks={}, counters={}, running={}, waiting={})

    async def generate(self, request: GenerationRequest) -> Generation:
        """Admit at once."""
        num_tokens = len(request.token_ids)
        num_hits = num_tokens * 15 // 16 // BLOCK_SIZE
        reasons = {"hit": num_hits, "diverged": num_tokens // BLOCK_SIZE - num_hits}
        admission = Admission(num_tokens, num_hits * BLOCK_SIZE, reasons, "diverged", num_hits * BLOCK_SIZE)
        answer = list(itertools.islice(itertools.cycle(self._words), request.sampling.max_tokens))
        return Generation(admission, answer)


class Generation:
    """An answer that is known from the start."""

    def __init__(self, admission: Admission, answer: Sequence[int]) -> None:
        self.admission = admission
        self.prompt_logprobs = ()
        self._answer = answer

    async def __aiter__(self) -> AsyncIterator[TokenBatch]:
        if len(self._answer) <= AT_ONCE_TOKENS:
            yield TokenBatch(self._answer, "length")
            return
        for number, token in enumerate(self._answer, start=1):
            await asyncio.sleep(0)
            yield TokenBatch((token,), "length" if number == len(self._answer) else None)

    def end(self, choice: int) -> None:
        """Nothing runs."""

    def abort(self) -> None:
        """Nothing runs."""


class BareApp:
    """What uvicorn costs, and nothing else: it reads the body and answers a constant."""

    state = SimpleNamespace(is_settled=lambda: True, end_live=lambda: None)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer one request."""
        if scope["type"] == "lifespan":
            while True:
                kind = (await receive())["type"]
                await send({"type": f"{kind}.complete"})
                if kind == "lifespan.shutdown":
                    return
        await read_body(receive)
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(_CONSTANT)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": _CONSTANT})


def main(kind: str, *arguments: str) -> int:
    """Serve until a signal comes."""
    if kind == "bare":
        settings = parse_options(arguments)
        servant: Any = SimpleNamespace(ready=lambda: True, state=lambda: "ready", stop=_nothing)
        return run(BareApp(), servant, settings, model_name=MODEL, keys=NoKeys())
    folder, *flags = arguments
    settings = parse_options(flags)
    configure_logging(settings.log_format)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # as `serve` does
    asyncio.run(prepare_database(settings))
    store = open_store(settings)
    files = ModelFiles.from_folder(Path(folder), MODEL)
    backend: Any = InstantBackend(Tokenizer(files.tokenizer_file))
    app = create_app(settings, backend, files, store=store)
    return run(app, backend, settings, model_name=MODEL, keys=store.ring)


async def _nothing() -> None:
    pass


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
