"""Runs an example as a user does, against a server."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "examples"


def run_example(name: str, *, url: str, model: str, api_key: str = "none") -> str:
    """Run one; give what it printed."""
    settings = {
        "OPENAI_BASE_URL": f"{url}/v1",
        "OPENAI_API_KEY": api_key,
        "OPENAI_MODEL": model,
        "ANTHROPIC_BASE_URL": url,
        "ANTHROPIC_API_KEY": api_key,
        "ANTHROPIC_MODEL": model,
    }
    program = "sh" if name.endswith(".sh") else sys.executable
    environment = {**os.environ, **settings}
    done = subprocess.run([program, str(FOLDER / name)], env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert not done.stderr, done.stderr
    return done.stdout
