"""`prefixgate serve` around the fake backend, for tests of the process: `python -m … FOLDER [ready | failed | slow [GRACE_SECONDS [PORT]]]`.

With PREFIXGATE_DB it has a store, else none.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from pathlib import Path

from gateway.app import create_app
from gateway.auth import NoKeys
from gateway.commands.serve import run
from gateway.model_files import ModelFiles
from gateway.settings import Settings
from gateway.storage.store import open_store, prepare_database
from tests.gateway.support.fake_backend import FakeBackend


class FailedBackend(FakeBackend):
    def state(self) -> str:
        return "failed: no memory"


def main(folder: str, kind: str = "ready", grace_seconds: str = "10", port: str = "0") -> int:
    logging.basicConfig(level=logging.INFO)
    settings = Settings(port=int(port))
    files = ModelFiles.from_folder(Path(folder), "tiny")
    backend = FailedBackend(is_up=False) if kind == "failed" else FakeBackend(reply=[40, 41, 0])
    backend.delay_seconds = 600 if kind == "slow" else 0
    store = None
    if settings.db is not None:
        asyncio.run(prepare_database(settings))
        store = open_store(settings)
    app = create_app(settings, backend, files, store=store)
    keys = store.ring if store else NoKeys()
    return run(app, backend, settings, model_name=files.name, keys=keys, grace_seconds=float(grace_seconds))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
