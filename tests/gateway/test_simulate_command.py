"""`prefixgate simulate` on small traces of our own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gateway.commands.simulate import main

TRACE = [[0, 1, 2], [0, 1, 3], [0, 1, 2, 4], [5]]


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.jsonl"
    path.write_text("\n".join(json.dumps({"hash_ids": ids}) for ids in TRACE) + "\n\n")
    return path


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict:
    assert main([str(argument) for argument in arguments]) == 0
    return json.loads(capsys.readouterr().out)


def test_simulate_unlimited_pool_prints_one_json_object(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = run(capsys, "--trace", trace, "--format", "hash-ids", "--json")
    assert report["total_blocks"] == 11
    assert report["hit_blocks"] == 5
    assert report["hit_rate"] == pytest.approx(5 / 11)
    assert report["evicted_blocks"] == report["share_cap_copies"] == 0


def test_simulate_mooncake_format_counts_a_partial_last_block(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "mooncake.jsonl"
    entry = {"timestamp": 0, "input_length": 700, "output_length": 9, "hash_ids": [7, 8]}
    path.write_text(f"{json.dumps(entry)}\n{json.dumps(entry | {'timestamp': 5})}\n")
    report = run(capsys, "--trace", path, "--format", "mooncake", "--json")
    assert (report["total_blocks"], report["hit_blocks"]) == (4, 2)


def test_simulate_small_pool_evicts_and_plots(trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture = tmp_path / "curve.png"
    report = run(
        capsys,
        "--trace",
        trace,
        "--format",
        "hash-ids",
        "--num-blocks",
        4,
        "--max-shared-ratio",
        1,
        "--json",
        "--plot",
        picture,
    )
    assert report["evicted_blocks"] > 0
    assert picture.read_bytes().startswith(b"\x89PNG")
    rates = [point["hit_rate"] for point in report["curve"]]
    assert rates == sorted(rates)
    assert rates[-1] == pytest.approx(5 / 11)


def test_simulate_without_json_prints_a_table(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--trace", str(trace), "--format", "hash-ids"]) == 0
    assert "hit_rate" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("line", "trace_format", "complaint"),
    [
        ("{", "hash-ids", ":1: not JSON"),
        ("[1]", "hash-ids", "wanted an object"),
        ('{"ids": []}', "hash-ids", "hash_ids is missing"),
        ('{"hash_ids": [1, "2"]}', "hash-ids", "whole numbers"),
        ('{"hash_ids": [true]}', "hash-ids", "whole numbers"),
        ('{"hash_ids": 3}', "hash-ids", "whole numbers"),
        ('{"hash_ids": [1]}', "mooncake", "timestamp is missing"),
    ],
)
def test_simulate_bad_line_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], line: str, trace_format: str, complaint: str
) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text(line)
    assert main(["--trace", str(path), "--format", trace_format]) == 1
    assert complaint in capsys.readouterr().err


@pytest.mark.parametrize("option", [("--num-blocks", "0"), ("--max-shared-ratio", "1.5"), ("--policy", "mru")])
def test_simulate_bad_option_exits_with_2(trace: Path, option: tuple[str, str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["--trace", str(trace), "--format", "hash-ids", *option])
    assert stop.value.code == 2


def test_simulate_enormous_pool_takes_no_more_memory_than_the_trace(
    trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--trace", trace, "--format", "hash-ids", "--json")
    unlimited = run(capsys, *options)
    report = run(capsys, *options, "--num-blocks", 10**11)
    assert (report["hit_blocks"], report["num_blocks"]) == (unlimited["hit_blocks"], 10**11)


def test_simulate_missing_file_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--trace", "nowhere.jsonl", "--format", "hash-ids"]) == 1
    assert "nowhere.jsonl" in capsys.readouterr().err
