from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmarks import normalize_speed, templates
from tests.gateway.support.templates import CHATML, LATE_SYSTEM
from tests.gateway.support.tiny_model import write_model


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, source in (("good", CHATML), ("late", LATE_SYSTEM), ("broken", "{% if %}")):
        (tmp_path / f"{name}.jinja").write_text(source)
    return tmp_path


def test_templates_of_a_folder_get_verdicts(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["templates", str(folder), "--sentences"])
    assert templates.main() == 0
    lines = capsys.readouterr().out.splitlines()
    verdicts = {line.split("\t")[0]: line.split("\t")[1] for line in lines if ".jinja\t" in line}
    assert verdicts == {"good.jinja": "yes", "late.jinja": "no", "broken.jinja": "error"}
    assert lines[-1] == "# 1 of 3 templates are stable"
    assert any("move as the chat goes on" in line for line in lines)


def test_templates_come_as_one_object(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["templates", str(folder), "--json"])
    assert templates.main() == 0
    verdicts = json.loads(capsys.readouterr().out)
    assert verdicts["good.jinja"]["is_stable"] is True
    assert "compile" in verdicts["broken.jinja"]


def test_normalize_speed_times_every_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_model(tmp_path).folder
    monkeypatch.setattr(sys, "argv", ["normalize_speed", "--model", str(folder), "--rounds", "2", "--json"])
    assert normalize_speed.main() == 0
    shown = json.loads(capsys.readouterr().out)
    assert 90_000 < shown["body_bytes"] < 110_000
    assert all(shown["median_ms"][kind]["normalize+render"] > 0 for kind in ("cold", "memoized"))
