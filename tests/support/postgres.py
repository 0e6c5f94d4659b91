"""A private PostgreSQL 15 for one run of the tests: its own cluster in a temporary folder, on a free port."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.server import free_port
from tests.support.services import require_program

OWNERS = ("postgres", "nobody")
"""PostgreSQL refuses to run as root, so then it runs as the first of these."""
_FASTER = "-c fsync=off -c full_page_writes=off -c max_connections=200"


class Cluster:
    """A running server. `stop` and `start` are for tests of a database that is gone."""

    def __init__(self, folder: Path, programs: Path) -> None:
        self.port = free_port()
        self._folder = folder
        self._programs = programs

    def start(self) -> None:
        options = f"-p {self.port} -k {self._folder} -c listen_addresses=127.0.0.1 {_FASTER}"
        log = str(self._folder / "log")
        self._run("pg_ctl", "-D", str(self._folder / "data"), "-o", options, "-l", log, "-w", "start")

    def stop(self) -> None:
        self._run("pg_ctl", "-D", str(self._folder / "data"), "-m", "immediate", "-w", "stop")

    def init(self) -> None:
        self._run("initdb", "-D", str(self._folder / "data"), "-U", "test", "-A", "trust", "-E", "UTF8", "--no-sync")

    def new_database(self, name: str) -> str:
        """Create an empty database; its URL comes out."""
        self._run("createdb", "-h", "127.0.0.1", "-p", str(self.port), "-U", "test", name)
        return f"postgresql+psycopg://test@127.0.0.1:{self.port}/{name}"

    def _run(self, program: str, *arguments: str) -> None:
        # Not inherited: the server would hold the test's own output open after its end.
        command = [*_as_owner(), str(self._programs / program), *arguments]
        with (self._folder / "setup.log").open("ab") as log:
            done = subprocess.run(command, stdout=log, stderr=log, cwd=self._folder, check=False, timeout=120)
        if done.returncode:
            raise RuntimeError(f"{program} failed:\n{(self._folder / 'setup.log').read_text()}")


@contextmanager
def running_cluster() -> Iterator[Cluster]:
    """Start a cluster and throw it away afterwards; skips or fails where PostgreSQL is missing."""
    folder = Path(tempfile.mkdtemp(prefix="prefixgate-pg-"))
    try:
        cluster = Cluster(folder, _programs())
        if owner := _owner():
            shutil.chown(folder, owner)
        cluster.init()
        cluster.start()
        try:
            yield cluster
        finally:
            cluster.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _programs() -> Path:
    """Debian keeps them outside of the path, a folder for each version."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    return (found[-1] if found else Path(require_program("initdb", "postgresql"))).parent


def _owner() -> str | None:
    if os.geteuid() != 0:
        return None
    users = Path("/etc/passwd").read_text().splitlines()
    return next(owner for owner in OWNERS if any(line.startswith(f"{owner}:") for line in users))


def _as_owner() -> list[str]:
    owner = _owner()
    return ["setpriv", f"--reuid={owner}", "--clear-groups", "--"] if owner else []
