"""`prefixgate serve` around the fake backend, for tests of the process: `python -m … FOLDER [failed]`."""

from __future__ import annotations

import sys
from pathlib import Path

from gateway.app import create_app
from gateway.commands.serve import run
from gateway.model_files import ModelFiles
from gateway.settings import Settings
from tests.gateway.support.fake_backend import FakeBackend


class FailedBackend(FakeBackend):
    def state(self) -> str:
        return "failed: no memory"


def main(folder: str, kind: str = "ready") -> int:
    settings = Settings(port=0)
    files = ModelFiles.from_folder(Path(folder), "tiny")
    backend = FakeBackend(reply=[40, 41, 0]) if kind == "ready" else FailedBackend(is_up=False)
    return run(create_app(settings, backend, files), backend, settings, model_name=files.name)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
