"""The ahead-of-time report: everything compiles for both architectures, and nothing spills."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from benchmarks import aot


def test_the_named_variants_compile_without_a_spill(tmp_path):
    file = tmp_path / "report.json"
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.aot", "--json", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=550, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    report = {usage["name"]: usage for usage in json.loads(file.read_text())}
    assert list(report) == [variant.name for variant in aot.variants()]
    assert 12 <= len(report) <= 24
    assert {name.rpartition("-")[2] for name in report} == {"sm80", "sm90"}
    assert all(0 < usage["registers"] <= 255 for usage in report.values())


@pytest.mark.parametrize(("spilled", "status"), [(0, 0), (8, 1)])
def test_a_spill_makes_the_exit_status(spilled, status, monkeypatch, capsys):
    usage = aot.Usage("decode", num_warps=4, registers=255, spilled_bytes=spilled, shared_bytes=0, loop_instructions=9)

    class Pool:
        def __init__(self, **_):
            pass

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def map(self, _, chosen):
            return [usage for _ in chosen]

    monkeypatch.setattr(aot, "ProcessPoolExecutor", Pool)
    monkeypatch.setattr(sys, "argv", ["aot", "--only", "merge-int8/per_token-D128-G4-sm90"])
    assert aot.main() == status
    assert ("spills: decode" in capsys.readouterr().out) == bool(spilled)
