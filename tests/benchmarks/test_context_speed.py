"""The benchmark of edits runs and prints every history."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks import context_speed
from tests.gateway.support.tiny_model import write_model


def test_every_history_is_timed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_model(tmp_path)
    arguments = ["--model", str(tmp_path), "--rounds", "1", "--bytes", "20000", "--window", "2048"]
    monkeypatch.setattr(sys, "argv", ["context_speed", *arguments])
    assert context_speed.main() == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()[2:]]
    assert [row[0] for row in rows] == ["agent", "document", "short", "chinese"]
    assert all(float(time) > 0 for row in rows for time in row[3:])
