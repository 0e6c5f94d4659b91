"""The benchmark of what the gateway adds, with tiny counts: it measures every side, and its mock and client are understood."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.gateway import Counts, measure, print_table
from benchmarks.overhead.processes import sides
from tests.gateway.support.tiny_model import write_model


async def test_every_side_is_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_model(tmp_path)
    counts = Counts(alone=3, together=20, streams=2, short=17, long=20)
    with sides(tmp_path, tmp_path, ["bare", "local", "upstream"]) as started:
        report = await measure(started, counts, num_rounds=1)
        logs = (tmp_path / "local.log").read_text() + (tmp_path / "upstream.log").read_text()
    print_table(report)
    table = capsys.readouterr().out
    assert list(report["medians"]) == ["direct", "bare", "local", "upstream"]
    assert all(row in table for row in report["medians"])
    for name, figures in report["medians"].items():
        assert figures["requests_per_second"] > 0
        assert (figures["chunk_cpu_us"] is None) == (name == "bare")
    assert "ERROR" not in logs
    assert "WARNING" not in logs
