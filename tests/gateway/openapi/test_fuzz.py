"""schemathesis against the project's own description: whatever is sent, no 500, and nothing that is not described.

Keys are on, the admin API too. A body that fits its schema may still be refused (two fields that exclude each other, a
prompt that is too long), so that alone is not checked.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gateway.model_files import ModelFiles
from tests.gateway.support.echo_server import ADMIN_KEY, EchoServer, echo_server

HOOKS = Path(__file__).with_name("hooks.py")
CONFIG = """
hooks = "{hooks}"
[auth.openapi]
ApiKey.bearer = "{key}"
AdminKey.bearer = "{admin_key}"
[checks]
positive_data_acceptance.enabled = false
negative_data_rejection.expected-statuses = [400, 401, 403, 404, 409, 413, 429]
"""


@pytest.fixture
def server(model_files: ModelFiles, tmp_path: Path) -> Iterator[EchoServer]:
    with echo_server(model_files, tmp_path) as server:
        yield server


@pytest.fixture
def fuzz(server: EchoServer, tmp_path: Path) -> Callable[..., int]:
    """Run schemathesis; give the number of its cases."""
    key, known = server.new_key("everyone"), server.make_known()
    (tmp_path / "schemathesis.toml").write_text(CONFIG.format(hooks=HOOKS, key=key, admin_key=ADMIN_KEY))

    def run(*arguments: str) -> int:
        program = [sys.executable, "-c", "from schemathesis.cli import schemathesis; schemathesis()"]
        command = [*program, "run", f"{server.url}/openapi.json"]
        ends = "--exclude-path=/admin/v1/live"  # which does not
        options = ["--request-timeout=20", "--warnings=off", "--seed=1", "--generation-database=none", ends, *arguments]
        environment = {**os.environ, "KNOWN_IDS": json.dumps(known), "COLUMNS": "160"}
        done = subprocess.run([*command, *options], cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout[-20_000:] + done.stderr
        return int(re.findall(r"(\d+) generated", done.stdout)[-1])

    return run


def test_no_500_and_no_undescribed_answer(fuzz: Callable[..., int]) -> None:
    assert fuzz("--phases=fuzzing", "--max-examples=4") >= 150


@pytest.mark.slow
@pytest.mark.parametrize(("phases", "least"), [("coverage", 4000), ("fuzzing", 1000)], ids=["every-bound", "at-random"])
def test_no_500_and_no_undescribed_answer_in_5000_cases(fuzz: Callable[..., int], phases: str, least: int) -> None:
    assert fuzz(f"--phases={phases}", "--max-examples=25", "--continue-on-failure") >= least
