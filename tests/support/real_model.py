"""The real 135M model, fetched once into the user's cache."""

from __future__ import annotations

import functools
import subprocess
import sys
from pathlib import Path

MODEL = "smollm2-135m-instruct"


@functools.cache
def model_folder() -> Path:
    """Its folder; the first call on a machine fetches and unpacks it."""
    command = [sys.executable, "-m", "engine.commands.models"]
    subprocess.run([*command, "pull", MODEL], check=True)
    return Path(subprocess.run([*command, "path", MODEL], check=True, capture_output=True, text=True).stdout.strip())
