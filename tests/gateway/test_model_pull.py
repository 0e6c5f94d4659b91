"""A model that is missing is fetched by a process of its own, which never outlives the gateway."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.processes import is_running

# A gateway whose "pull" only says that it runs and then sleeps, with a child as pip would be.
SCRIPT = """
import signal
import sys
from pathlib import Path
from gateway.backends.local import models

signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in what a shell starts in the background
from gateway.settings import Settings

models.PULL_COMMAND = ("sh", "-c", f"sleep 60 & echo $$ $! > {sys.argv[1]}/ids; wait")
try:
    models.resolve_model(Settings(model_dir=Path(sys.argv[1])))
except models.ModelFilesError as error:
    print(error)
"""


@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGINT])
def test_interrupted_start_ends_the_pull_and_says_so(tmp_path: Path, sign: signal.Signals) -> None:
    gateway = subprocess.Popen([sys.executable, "-c", SCRIPT, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    ids = tmp_path / "ids"
    deadline = time.monotonic() + 60
    while not (ids.exists() and len(ids.read_text().split()) == 2):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    pull_ids = [int(word) for word in ids.read_text().split()]
    os.kill(gateway.pid, sign)
    said = gateway.communicate(timeout=90)[0]
    assert "interrupted; the next start fetches the model again" in said
    while any(map(is_running, pull_ids)):
        assert time.monotonic() < deadline, "the pull lives on"
        time.sleep(0.05)
