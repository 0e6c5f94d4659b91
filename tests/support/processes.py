"""Whether a process still runs."""

from __future__ import annotations

from pathlib import Path


def is_running(process_id: int) -> bool:
    """A zombie does not run."""
    try:
        return "zombie" not in Path(f"/proc/{process_id}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
