"""The sides of the serving benchmark: this project, and what people would run instead.

A side is started for one run and stopped after it, so that its cache is cold and no other side holds a core.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from benchmarks.loads import Load
from benchmarks.timings import Figures


class SideMissingError(Exception):
    """A side cannot run here: not installed, or it does not take this model. Says why."""


class Side(Protocol):
    """Something that serves chats."""

    name: str

    def run(self, load: Load, round_number: int) -> Figures:
        """Start, warm up on other words, run the load, stop.

        Raises:
            SideMissingError: it cannot run here.
            RuntimeError: it ran, and an answer failed or came short.
        """
        ...


def model_files(folder: Path) -> tuple[Path, Path]:
    """Return the folder of a pulled model and the GGUF file its weights came from.

    Raises:
        SideMissingError: there is no such file, so the sides would not run the same weights.
    """
    found = sorted(folder.glob("*.gguf"))
    if len(found) != 1:
        raise SideMissingError(f"{folder} has {len(found)} GGUF files, wanted one, for all sides alike")
    return folder, found[0]
