"""`prefixgate simulate`: what a prefix cache of this size and policy would have reused of a trace.

The replay is the real cache's code (`prefixcache.simulate`); this file reads options, prints and plots.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson

from gateway.traces import REQUIRED_FIELDS, TraceError, read_trace
from prefixcache.simulate import ReplayResult, replay

POLICIES = ("lru", "priority")
CURVE_SHARES = (1 / 64, 1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2, 1)
"""Pool sizes of the plot, as shares of the trace's distinct blocks."""


def main(argv: Sequence[str]) -> int:
    """Replay a trace; returns the exit status."""
    args = _parser().parse_args(argv)
    try:
        trace = list(read_trace(args.trace, args.format))
    except (TraceError, OSError) as error:
        print(f"prefixgate simulate: {error}", file=sys.stderr)
        return 1
    report = _report(args, replay(trace, **_options(args, args.num_blocks)))
    if args.plot is not None:
        report["curve"] = _curve(args, trace)
        problem = _plot(args.plot, report)
        if problem is not None:
            print(f"prefixgate simulate: --plot: {problem}", file=sys.stderr)
            return 1
    if args.json:
        print(orjson.dumps(report).decode())
    else:
        for name, value in report.items():
            print(f"{name:>18}  {value}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="prefixgate simulate", description=__doc__, allow_abbrev=False)
    parser.add_argument("--trace", type=Path, required=True, metavar="FILE", help="JSON lines, a request a line")
    parser.add_argument("--format", choices=sorted(REQUIRED_FIELDS), required=True, help="of the trace")
    parser.add_argument("--num-blocks", type=_positive, help="blocks in the pool (default: pool and cap unlimited)")
    parser.add_argument("--policy", choices=POLICIES, default="lru", help="what is evicted first (default: lru)")
    parser.add_argument(
        "--max-shared-ratio", type=_ratio, default=0.5, help="most of the pool in common use (default: 0.5)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--plot", type=Path, metavar="F.png", help="draw the hit rate by pool size")
    return parser


def _positive(text: str) -> int:
    value = int(text) if text.isdecimal() else 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"got {text!r}, wanted a whole number of at least 1")
    return value


def _ratio(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0.0 <= value <= 1.0:
        raise argparse.ArgumentTypeError(f"got {text!r}, wanted a number from 0 to 1")
    return value


def _options(args: argparse.Namespace, num_blocks: int | None) -> dict[str, Any]:
    return {"num_blocks": num_blocks, "policy": args.policy, "max_shared_ratio": args.max_shared_ratio}


def _report(args: argparse.Namespace, result: ReplayResult) -> dict[str, Any]:
    limits: dict[str, Any] = {"num_blocks": args.num_blocks, "policy": args.policy}
    limits["max_shared_ratio"] = None if args.num_blocks is None else args.max_shared_ratio
    return {"trace": args.trace.name, **limits, **dataclasses.asdict(result), "hit_rate": result.hit_rate}


def _curve(args: argparse.Namespace, trace: list[list[int]]) -> list[dict[str, Any]]:
    num_distinct = max(1, len({block for ids in trace for block in ids}))
    sizes = sorted({max(1, round(share * num_distinct)) for share in CURVE_SHARES})
    results = [(size, replay(trace, **_options(args, size))) for size in sizes]
    return [{"num_blocks": size, "hit_rate": result.hit_rate} for size, result in results]


def _plot(path: Path, report: dict[str, Any]) -> str | None:
    """Draw the curve; return what stood in the way."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return "matplotlib is not installed; pip install 'prefixgate[plot]'"
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    axes.plot(
        [point["num_blocks"] for point in report["curve"]],
        [100 * (point["hit_rate"] or 0) for point in report["curve"]],
        marker="o",
        label=report["policy"],
    )
    axes.set_xscale("log", base=2)
    axes.set_xlabel("blocks in the pool")
    axes.set_ylabel("prompt blocks taken from the cache, %")
    axes.set_ylim(bottom=0)
    axes.set_title(f"{report['trace']}: {report['num_requests']} requests, {report['total_blocks']} blocks")
    axes.grid(visible=True, alpha=0.3)
    axes.legend()
    try:
        figure.savefig(path, dpi=150)
    except (OSError, ValueError) as error:
        return str(error)
    return None
