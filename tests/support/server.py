"""`prefixgate serve` as a process of its own, as a user starts it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import httpx

START_SECONDS = 600
"""The first start may fetch and unpack the model."""


def free_port() -> int:
    """A port that nobody listens on right now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Server:
    """Start with `with Server([...]) as server`; stops, and shows its log when it failed to start."""

    admin_key = "test-admin-key"

    def __init__(self, arguments: Sequence[str] = ()) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._arguments = list(arguments)

    def __enter__(self) -> Server:
        self._log = tempfile.NamedTemporaryFile(prefix="prefixgate-serve-", suffix=".log", delete=False)
        command = [sys.executable, "-m", "gateway", "serve", *self._arguments, "--port", str(self.port)]
        self._folder = tempfile.TemporaryDirectory(prefix="prefixgate-serve-")
        database = f"sqlite+aiosqlite:///{self._folder.name}/prefixgate.db"
        environment = {"PREFIXGATE_DB": database, **os.environ, "PREFIXGATE_ADMIN_KEY": self.admin_key}
        self.process = subprocess.Popen(command, stdout=self._log, stderr=subprocess.STDOUT, env=environment)
        try:
            self.wait_ready()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def log(self) -> str:
        """What it printed so far."""
        return Path(self._log.name).read_text(errors="replace")

    def wait_ready(self, seconds: float = START_SECONDS) -> None:
        """Wait until /ready says 200."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise RuntimeError(f"serve ended with status {self.process.returncode}:\n{self.log()}")
            try:
                if httpx.get(f"{self.url}/ready", timeout=5).status_code == 200:
                    return
            except httpx.TransportError:
                pass
            time.sleep(0.1)
        raise TimeoutError(f"not ready after {seconds} s:\n{self.log()}")

    def cache(self) -> dict[str, int]:
        """`GET /admin/v1/cache`."""
        headers = {"authorization": f"Bearer {self.admin_key}"}
        answer = httpx.get(f"{self.url}/admin/v1/cache", headers=headers, timeout=30)
        answer.raise_for_status()
        return answer.json()

    def metrics(self) -> dict[str, float]:
        """`GET /metrics`, series -> value."""
        lines = httpx.get(f"{self.url}/metrics", timeout=30).text.splitlines()
        return {series: float(value) for series, value in (s.rsplit(" ", 1) for s in lines if not s.startswith("#"))}

    def worker_ids(self) -> list[int]:
        """Process ids of the engine worker: the direct children that run it."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return [int(c) for c in children if b"engine.worker" in Path(f"/proc/{c}/cmdline").read_bytes()]

    def _stop(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self._log.close()
        Path(self._log.name).unlink()
        self._folder.cleanup()
