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
    git = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    commit = git.stdout.strip() or "unknown"
    return f"{model}, {os.cpu_count()} cores, CPython {platform.python_version()}, commit {commit}"
