"""Check one GPU: are the Triton kernels right, as fast as the memory allows, and 100 chats served on 24 GiB?

python -m benchmarks.gpu_check [--json FILE]     one H200-class GPU, under 9 minutes
python -m benchmarks.gpu_check --dry-run         correctness in interpreter mode and serving, on the CPU, tiny shapes

Every section has a budget of seconds, and all of them together have one, too; what does not fit is left out and said so,
and an error ends its section only. Writes a JSON file, anew after each section, prints one table last, and exits with
status 1 if something did not hold or did not run. Without a GPU it exits with status 2.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from benchmarks import gpu_correctness, gpu_serving, gpu_speed, machine
from benchmarks.gpu_rows import Row

LIMIT_SECONDS = 520.0
"""Of all sections; a row that is being measured then is finished."""
DEFAULT_JSON = Path(__file__).parent / "results" / "gpu_check.json"


@dataclass(frozen=True, slots=True)
class Section:
    """A part of the check."""

    name: str
    budget_seconds: float
    rows: Callable[[torch.device], Iterator[Row]]
    """Yields each row when it is measured, so that what came before an error, or the budget's end, is kept."""


SECTIONS = (
    Section("correctness", 150, gpu_correctness.check_kernels),
    Section("serving", 130, gpu_serving.serve),
    Section("bandwidth", 80, gpu_speed.measure_bandwidth),
    Section("slope", 50, gpu_speed.measure_slope),
    Section("fusion", 30, gpu_speed.compare_with_unfused),
    Section("cascade", 30, gpu_speed.compare_cascade),
    Section("steps", 30, gpu_speed.measure_store_and_prefill),
)
DRY_SECTIONS = (
    Section("correctness", 120, gpu_correctness.check_kernels_briefly),
    Section("serving", 60, gpu_serving.serve_briefly),
)


def run_section(
    section: Section,
    device: torch.device,
    clock: Callable[[], float] = time.monotonic,
    *,
    deadline: float = math.inf,
) -> list[Row]:
    """Return the rows of a section, and one that says what went wrong if something did.

    Args:
        section: to run.
        device: the GPU, or the CPU in interpreter mode.
        clock: seconds.
        deadline: by this clock; no row is begun after it.
    """
    rows: list[Row] = []
    start = clock()
    stop = min(start + section.budget_seconds, deadline)
    if start > stop:
        return [Row(f"{section.name}: no time left", None, holds=False)]
    try:
        for row in section.rows(device):
            rows.append(row)
            print(f"  {row.what}: {row.shown()}", flush=True)
            if clock() > stop:
                rows.append(Row(f"{section.name}: over its time, the rest left out", None, holds=False))
                break
    except Exception as error:  # a failure is a result
        traceback.print_exc()
        rows.append(Row(f"{section.name}: {type(error).__name__}: {str(error)[:200]}", None, holds=False))
    return rows


def main(arguments: list[str] | None = None) -> int:
    """Run all sections; 1 if a row does not hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, default=None, help=f"default: {DEFAULT_JSON.relative_to(machine.ROOT)}")
    parser.add_argument("--dry-run", action="store_true", help="on the CPU; writes JSON only where it is told to")
    args = parser.parse_args(arguments)
    if args.dry_run:
        os.environ["TRITON_INTERPRET"] = "1"  # triton itself is imported with the first plan
    elif not torch.cuda.is_available():
        print("gpu_check: no GPU here; --dry-run runs what it can without one", file=sys.stderr)
        return 2
    start = time.monotonic()
    device = torch.device("cpu" if args.dry_run else "cuda")
    header = describe(device)
    print(header, flush=True)
    torch.manual_seed(int(time.time()))
    results: dict[str, list[Row]] = {}
    path = args.json or (None if args.dry_run else DEFAULT_JSON)
    for section in DRY_SECTIONS if args.dry_run else SECTIONS:
        print(section.name, flush=True)
        results[section.name] = run_section(section, device, deadline=start + LIMIT_SECONDS)
        if path is not None:
            write_json(path, header, results)
    print_table(header, results)
    return int(any(row.holds is False for rows in results.values() for row in rows))


def write_json(path: Path, header: str, results: dict[str, list[Row]]) -> None:
    """Write what there is so far."""
    path.parent.mkdir(parents=True, exist_ok=True)
    sections = {name: [asdict(row) for row in rows] for name, rows in results.items()}
    path.write_text(json.dumps({"machine": header, "sections": sections}, indent=1) + "\n", encoding="utf-8")


def describe(device: torch.device) -> str:
    """Return what ran this."""
    import triton

    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "interpreter mode"
    return f"{name}; torch {torch.__version__}, triton {triton.__version__}; {machine.describe()}"


def print_table(header: str, results: dict[str, list[Row]]) -> None:
    """Print all rows."""
    print(f"\n{header}")
    for name, rows in results.items():
        for row in rows:
            mark = {True: "holds", False: "FAILS", None: ""}[row.holds]
            print(f"{name:12} {row.what:64} {row.shown():>14} {row.wanted:>10} {mark}")


if __name__ == "__main__":
    sys.exit(main())
