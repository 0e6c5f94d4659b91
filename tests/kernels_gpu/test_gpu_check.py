"""The command for a GPU, as far as it goes without one."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch

from benchmarks import gpu_check, gpu_serving
from benchmarks.gpu_rows import Row, at_least, at_most


def test_dry_run_checks_every_format_and_writes_the_table(tmp_path):
    file = tmp_path / "check.json"
    command = [sys.executable, "-m", "benchmarks.gpu_check", "--dry-run", "--json", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    sections = json.loads(file.read_text())["sections"]
    served = {row["what"]: row["value"] for row in sections["serving"]}
    for cache in ("16-bit paged", "+ shared prefix", "+ int8/hadamard"):
        assert served[f"{cache}: chats that ran at once"] == gpu_serving.TOY.num_chats
        assert served[f"{cache}: p99 between tokens, all running"] > 0
    rows = sections["correctness"]
    for name in ("auto", "int8/per_token", "int8/hadamard", "int8/per_group_32"):
        assert sum(row["what"].startswith(name) and row["holds"] for row in rows) == 4
    assert sum(row["what"].startswith(("int8/per_channel", "copy_blocks")) and row["holds"] for row in rows) == 3
    assert "FAILS" not in done.stdout


def test_a_section_that_fails_keeps_its_rows_and_says_why(capsys):
    def rows(_):
        yield at_least("speed", 3.0, 2.0)
        raise RuntimeError("no such thing")

    found = gpu_check.run_section(gpu_check.Section("broken", 10, rows), torch.device("cpu"))
    assert [row.holds for row in found] == [True, False]
    assert "no such thing" in found[1].what


def test_a_section_over_its_budget_leaves_the_rest_out(capsys):
    def rows(_):
        while True:
            yield Row("one more", 1.0)

    seconds = iter([0.0, 4.0, 8.0, 12.0, 16.0])
    found = gpu_check.run_section(gpu_check.Section("slow", 10, rows), torch.device("cpu"), lambda: next(seconds))
    assert len(found) == 4
    assert "left out" in found[-1].what
    assert found[-1].holds is False  # what was not checked does not hold


def test_no_section_begins_or_goes_on_after_the_deadline(capsys):
    def rows(_):
        while True:
            yield Row("one more", 1.0)

    section = gpu_check.Section("late", 1000, rows)
    seconds = iter([0.0, 4.0, 8.0])
    found = gpu_check.run_section(section, torch.device("cpu"), lambda: next(seconds), deadline=5.0)
    assert [row.holds for row in found] == [None, None, False]
    [none] = gpu_check.run_section(section, torch.device("cpu"), lambda: 6.0, deadline=5.0)
    assert (none.what, none.holds) == ("late: no time left", False)


def test_the_budgets_leave_the_whole_check_under_nine_minutes():
    assert sum(section.budget_seconds for section in gpu_check.SECTIONS) <= 500
    assert gpu_check.LIMIT_SECONDS <= 520


@pytest.mark.parametrize(("row", "holds"), [(at_most("error", float("nan"), 1.0), False), (at_least("x", 2, 2), True)])
def test_a_bound_is_part_of_what_holds_and_nan_never_does(row, holds):
    assert row.holds is holds
