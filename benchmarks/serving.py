"""Serving against what people would run instead, on the same weights file: one table, with ratios.

python -m benchmarks.serving [--openvino-python PATH] [--llama-server PATH] [--sides a,b] [--loads a,b] [--rounds 3]
                             [--add-to FILE] [-- flags of serve]

Starts every side itself, one after the other in every round, each with a cold cache, and prints the medians over the
rounds. A side that is not installed, or fails, is a row that says so. `--add-to` counts the rounds of earlier runs of
the same commit, so that a busy machine can be asked for one round at a time. The peers come with
`pip install openvino-genai` in an environment of its own, and with llama.cpp's targets llama-server and llama-bench.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks import machine
from benchmarks.loads import LOADS, Load
from benchmarks.peers import Side, SideMissingError, model_files
from benchmarks.peers.child import InProcess
from benchmarks.peers.servers import LlamaCpp, Prefixgate
from benchmarks.serving_table import print_table
from tests.support.real_model import MODEL, model_folder

DEFAULT_JSON = machine.ROOT / "benchmarks" / "results" / "serving.json"


def main() -> int:
    """Run, print, write; 1 if a side that is installed failed."""
    args = _arguments()
    sides = _sides(args)
    report = _report_to_extend(args.add_to, args.serve)
    failures = 0
    for _ in range(args.rounds):
        for load in (LOADS[name] for name in args.loads):
            for name in args.sides:
                failures += not _run(sides[name], load, report)
    print_table(report)
    path = args.add_to or DEFAULT_JSON
    path.write_text(json.dumps(report, indent=1) + "\n")
    return int(failures > 0)


def _run(side: Side, load: Load, report: dict[str, Any]) -> bool:
    """Add one run's figures, or why there are none, to the report."""
    entry = report["loads"].setdefault(load.name, {}).setdefault(side.name, {"rounds": [], "missing": None})
    print(f"{load.name}: {side.name} …", file=sys.stderr, flush=True)
    try:
        entry["rounds"].append(asdict(side.run(load, len(entry["rounds"]))))
        entry["missing"] = None
    except SideMissingError as error:
        entry["missing"] = str(error)
    except RuntimeError as error:
        entry["missing"] = f"failed: {error}"
        return False
    return True


def _sides(args: argparse.Namespace) -> dict[str, Side]:
    folder, gguf = model_files(model_folder())
    child = "benchmarks.peers.{}_child"
    openvino, own = args.openvino_python, Path(sys.executable)
    flag, limit = "--openvino-python", args.limit
    sides: tuple[Side, ...] = (
        Prefixgate(MODEL, args.serve),
        InProcess("openvino", child.format("openvino"), openvino, flag, gguf, folder, limit),
        LlamaCpp(gguf, args.llama_server),
        InProcess("transformers", child.format("transformers"), own, "", folder, folder, limit),
    )
    return {side.name: side for side in sides}


def _report_to_extend(path: Path | None, flags: list[str]) -> dict[str, Any]:
    """Return the report of earlier rounds of this machine, commit and flags, else an empty one."""
    header = {"machine": machine.describe(), "serve_flags": flags}
    if path is not None and path.exists():
        earlier: dict[str, Any] = json.loads(path.read_text())
        if {key: earlier[key] for key in header} != header:
            raise SystemExit(f"--add-to: {path} is of another machine, commit or flags: {earlier['machine']}")
        return earlier
    return {**header, "loads": {}}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    all_sides = ("prefixgate", "openvino", "llama.cpp", "transformers")
    parser.add_argument(
        "--sides", type=_names(all_sides), default=list(all_sides), help="some of " + ",".join(all_sides)
    )
    parser.add_argument("--loads", type=_names(tuple(LOADS)), default=list(LOADS), help="some of " + ",".join(LOADS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--limit", type=float, default=300.0, metavar="SECONDS", help="for one run of an in-process peer"
    )
    parser.add_argument("--openvino-python", type=Path, metavar="PATH", help="a python that has openvino-genai")
    parser.add_argument("--llama-server", type=Path, metavar="PATH", help="with llama-bench beside it")
    parser.add_argument("--add-to", type=Path, metavar="FILE", help=f"default: a new {DEFAULT_JSON.name}")
    parser.add_argument("serve", nargs="*", help="flags for serve, after --")
    return parser.parse_args()


def _names(known: tuple[str, ...]) -> Any:
    def names(text: str) -> list[str]:
        chosen = text.split(",")
        if unknown := sorted(set(chosen) - set(known)):
            raise argparse.ArgumentTypeError(f"got {', '.join(unknown)}, wanted some of {', '.join(known)}")
        return chosen

    return names


if __name__ == "__main__":
    sys.exit(main())
