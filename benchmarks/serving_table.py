"""The table of the serving benchmark: medians, ratios to the peers, and which bars they reach."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.loads import LOADS

OURS = "prefixgate"
_COLUMNS = (
    ("rounds", "rounds", ""),
    ("prompt_tokens", "prompt", ".0f"),
    ("wall", "wall s", ".2f"),
    ("ttft_p50", "TTFT p50", ".3f"),
    ("ttft_p99", "TTFT p99", ".3f"),
    ("inter_token", "inter-tok", ".4f"),
    ("tokens_per_second", "tok/s", ".1f"),
)


@dataclass(frozen=True, slots=True)
class Bar:
    """What was promised: our figure over the peer's."""

    load: str
    peer: str
    figure: str
    bound: float
    lower_is_better: bool

    def holds(self, ratio: float) -> bool:
        """Tell whether the promise is kept."""
        return ratio <= self.bound if self.lower_is_better else ratio >= self.bound


BARS = (
    Bar("shared", "openvino", "wall", 0.5, True),
    Bar("shared", "openvino", "ttft_p99", 0.35, True),
    Bar("shared", "openvino", "tokens_per_second", 2.0, False),
    Bar("wide", "openvino", "tokens_per_second", 1.5, False),
    Bar("unique", "openvino", "wall", 1.0, True),
    Bar("shared", "transformers", "tokens_per_second", 4.0, False),
    Bar("single", "llama.cpp", "tokens_per_second", 0.5, False),
)
"""Unique prompts: 1.0 with int8 weights; 1.5 is asked of bfloat16 ones."""


def print_table(report: Mapping[str, Any]) -> None:
    """Print every load's sides, then every bar that can be judged."""
    print(report["machine"], *(["serve", *report["serve_flags"]] if report["serve_flags"] else []))
    medians = {
        load: {side: _medians(entry) for side, entry in sides.items()} for load, sides in report["loads"].items()
    }
    for load, sides in report["loads"].items():
        print(f"\n{load}: {LOADS[load].what}")
        print(f"{'':14}" + "".join(f"{title:>11}" for _, title, _ in _COLUMNS))
        for side, entry in sides.items():
            figures = medians[load][side]
            if figures:
                cells = (_cell(figures.get(key), spec) for key, _, spec in _COLUMNS)
                print(f"{side:14}" + "".join(f"{cell:>11}" for cell in cells))
            if entry["missing"]:
                print(f"{side:14}  {entry['missing']}")
    print()
    for bar in BARS:
        ours, theirs = (medians.get(bar.load, {}).get(side, {}).get(bar.figure) for side in (OURS, bar.peer))
        if ours and theirs:
            sign, verdict = "<=" if bar.lower_is_better else ">=", "holds" if bar.holds(ours / theirs) else "MISSES"
            what = f"{bar.load}: {bar.figure} / {bar.peer}'s"
            print(f"{what:46} {ours / theirs:6.2f}  wanted {sign} {bar.bound:4.2f}  {verdict}")


def _medians(entry: Mapping[str, Any]) -> dict[str, float]:
    rounds = entry["rounds"]
    if not rounds:
        return {}
    keys = [key for key, value in rounds[0].items() if value is not None]
    return {"rounds": len(rounds), **{key: statistics.median(run[key] for run in rounds) for key in keys}}


def _cell(value: float | None, spec: str) -> str:
    return "-" if value is None else f"{value:{spec}}"
