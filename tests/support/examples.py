"""Runs examples as a user does, against a server."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "examples"


_ALL_IN_ONE = """
import runpy, sys
for name in sys.argv[1:]:
    print("#", name)
    runpy.run_path(name, run_name="__main__")
"""


def run_examples(*names: str, url: str, model: str, api_key: str = "none") -> dict[str, str]:
    """Run some, one after the other in one process, for importing an SDK takes a second; give what each printed."""
    printed = _run([sys.executable, "-c", _ALL_IN_ONE, *names], url, model, api_key)
    parts = re.split(r"^# (\w+\.py)\n", printed, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def run_shell_example(name: str, *, url: str, model: str, api_key: str = "none") -> str:
    """Run one that is a shell script; give what it printed."""
    return _run(["sh", name], url, model, api_key)


def _run(command: list[str], url: str, model: str, api_key: str) -> str:
    settings = {
        "OPENAI_BASE_URL": f"{url}/v1",
        "OPENAI_API_KEY": api_key,
        "OPENAI_MODEL": model,
        "ANTHROPIC_BASE_URL": url,
        "ANTHROPIC_API_KEY": api_key,
        "ANTHROPIC_MODEL": model,
    }
    environment = {**os.environ, **settings}
    done = subprocess.run(command, cwd=FOLDER, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert not done.stderr, done.stderr
    return done.stdout
