"""Commands of `prefixgate`, run in a thread so that a server in the test's own event loop can answer them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import orjson
import pytest

Main = Callable[[Sequence[str]], int]
Run = Callable[..., Awaitable["Done"]]


@dataclass
class Done:
    status: int
    out: str
    err: str

    @property
    def json(self) -> dict:
        return orjson.loads(self.out)


def runner(capsys: pytest.CaptureFixture[str], url: str, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run commands against a gateway whose admin key is `open-sesame`."""
    monkeypatch.setenv("PREFIXGATE_URL", url)
    monkeypatch.setenv("PREFIXGATE_ADMIN_KEY", "open-sesame")

    async def run(main: Main, *argv: str) -> Done:
        capsys.readouterr()
        status = await asyncio.to_thread(main, argv)
        return Done(status, *capsys.readouterr())

    return run
