"""The line that every benchmark prints first."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path

ROOT = Path(__file__).parent.parent


def describe() -> str:
    """Return processor, cores, Python and commit."""
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        lines = cpuinfo.read_text().splitlines()
        model = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), model)
    return f"{model}, {os.cpu_count()} cores, CPython {platform.python_version()}, commit {_commit()}"


def _commit() -> str:
    command = ["git", "describe", "--always", "--dirty"]
    try:
        git = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    except OSError:  # a machine that got a copy of the tree may have no git
        return "unknown"
    return git.stdout.strip() or "unknown"
