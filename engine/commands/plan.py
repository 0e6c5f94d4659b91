"""`prefixgate plan`: the memory account of a model, or of a bare shape of KV cache, before anything is started."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from engine.errors import EngineError
from engine.kv_layout import (
    DEFAULT_KV_FORMAT,
    KV_FORMATS,
    SKIP_AUTO,
    SKIP_NONE,
    KVLayout,
    format_layers,
    parse_skip_layers,
)
from engine.memory_plan import CPU_OVERHEAD_BYTES, GIB, FixedBytes, MemoryPlan, Workload
from engine.model_config import ModelConfig
from engine.model_store import resolve
from engine.plan_variants import variants

_ITEM_SIZES = {"auto": 2, "bfloat16": 2, "float16": 2, "float32": 4}
_UNITS = {"": GIB, "b": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}
_DECIMAL_UNITS = {"kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
_BYTES_FROM = 10**6  # nobody means a million GiB


def main(argv: Sequence[str] | None = None) -> int:
    """Print the account; returns the exit status, 0 also where the chats do not fit."""
    parser = _parser()
    args = parser.parse_args(argv)
    given = [value is not None for value in (args.layers, args.kv_heads, args.head_dim)]
    if (args.model is not None) == any(given) or any(given) != all(given):
        parser.error("wanted either MODEL, or all of --layers, --kv-heads and --head-dim")
    if args.model is not None and args.weights:
        parser.error("--weights: belongs to a shape; MODEL has its own")
    try:
        plan = _plan(args)
    except (EngineError, ValueError) as error:
        print(f"prefixgate plan: {error}", file=sys.stderr)
        return 2 if isinstance(error, ValueError) else 1
    if args.json:
        print(json.dumps(_report(plan) | ({"variants": _variants_report(plan)} if args.compare else {})))
    else:
        print(_text(plan, skip_auto=args.kv_skip_layers == SKIP_AUTO))
        print(_variants_text(plan) if args.compare else "", end="")
    return 0


def _plan(args: argparse.Namespace) -> MemoryPlan:
    model = None
    if args.kv_cache_dtype is None:
        args.kv_cache_dtype = "auto" if args.model is None else DEFAULT_KV_FORMAT
    if args.model is not None:
        model = ModelConfig.from_folder(resolve(args.model, args.model_dir).folder)
    num_layers = args.layers if model is None else model.num_layers
    itemsize = _ITEM_SIZES[args.dtype]
    # which layers the probe would skip is known only when the model runs
    skip = SKIP_NONE if args.kv_skip_layers == SKIP_AUTO else args.kv_skip_layers
    skipped = parse_skip_layers(skip, num_layers=num_layers)
    layout = KVLayout(
        num_layers=num_layers,
        num_kv_heads=args.kv_heads if model is None else model.num_kv_heads,
        head_dim=args.head_dim if model is None else model.head_dim,
        kv_cache_dtype=args.kv_cache_dtype,
        skipped_layers=skipped if args.kv_cache_dtype != "auto" else frozenset(),
        block_size=args.block_size,
        itemsize=itemsize,
    )
    context = args.context or (2048 if model is None else model.max_position)
    fixed = FixedBytes(weights=args.weights, overhead=CPU_OVERHEAD_BYTES) if args.weights else FixedBytes()
    if model is not None:
        fixed = FixedBytes.of_model(
            model,
            itemsize=itemsize,
            max_num_batched_tokens=args.max_num_batched_tokens,
            concurrency=args.concurrency,
            int8=args.quantization == "int8",
        )
    workload = Workload(args.concurrency, context, args.shared_tokens)
    return MemoryPlan(layout, workload, fixed, args.memory, step_tokens=args.max_num_batched_tokens)


def _report(plan: MemoryPlan) -> dict[str, Any]:
    per_token = plan.layout.bytes_per_token
    return {
        "kv_bytes_per_token": int(per_token) if per_token == int(per_token) else per_token,
        "kv_bytes_total": plan.kv_bytes_total,
        "fits": plan.fits,
        "max_concurrency": plan.max_concurrency,
        "average_concurrency": plan.average_concurrency,
        "max_context_tokens": plan.max_context_tokens,
        "weights_bytes": plan.fixed.weights,
        "activations_bytes": plan.fixed.activations,
        "overhead_bytes": plan.fixed.overhead,
        "reserve_bytes": plan.reserve_bytes,
        "kv_budget_bytes": plan.kv_budget_bytes,
        "memory_bytes": plan.memory_bytes,
        "concurrency": plan.workload.concurrency,
        "context_tokens": plan.workload.context_tokens,
        "shared_tokens": plan.workload.shared_tokens,
        "kv_cache_dtype": plan.layout.kv_cache_dtype,
        "kv_skip_layers": format_layers(plan.layout.skipped_layers),
        "block_size": plan.layout.block_size,
        "formula": plan.layout.formula(),
        "advice": _advice(plan),
    }


def _text(plan: MemoryPlan, *, skip_auto: bool) -> str:
    load = plan.workload
    shared = f", the first {load.shared_tokens:,} of them shared" if load.shared_tokens else ""
    lines = [
        f"KV cache     {plan.layout.formula()}",
        f"             {load.concurrency:,} chats of {load.context_tokens:,} tokens{shared}, in blocks of "
        f"{plan.layout.block_size}: {_gib(plan.kv_bytes_total)}",
    ]
    if plan.fixed.total:
        lines.append(f"weights      {_gib(plan.fixed.weights)}")
        if plan.fixed.activations:
            lines.append(f"activations  {_gib(plan.fixed.activations)} at the largest step")
        lines.append(f"overhead     {_gib(plan.fixed.overhead)} of the runtime, estimated")
    if plan.memory_bytes is not None:
        budget = f"memory       {_gib(plan.memory_bytes)}"
        if plan.fixed.total:
            budget += (
                f", less all that and a reserve of {_gib(plan.reserve_bytes)}: {_gib(plan.kv_budget_bytes or 0)} for KV"
            )
        lines += [
            budget,
            f"fits         {'yes' if plan.fits else 'no'}",
            f"             {plan.max_concurrency:,} chats when all are at full length (worst case), "
            f"{plan.average_concurrency:,} when they are half way there on average",
            f"             {plan.max_context_tokens:,} tokens each with {load.concurrency:,} chats",
        ]
    if skip_auto and plan.layout.kv_cache_dtype != "auto":
        lines.append(
            "note         the layers that --kv-skip-layers auto will leave in 16 bits are not known before a start"
        )
    lines += [f"advice       {advice}" for advice in _advice(plan)]
    return "\n".join(lines)


def _variants_report(plan: MemoryPlan) -> list[dict[str, Any]]:
    return [
        {
            "name": variant.name,
            "kv_bytes_total": variant.full.kv_bytes_total,
            "kv_bytes_average": variant.average.kv_bytes_total,
            "fits": variant.full.fits,
            "fits_on_average": variant.average.fits,
            "max_concurrency": variant.full.max_concurrency,
            "average_concurrency": variant.average.max_concurrency,
            "needed_bytes": variant.full.needed_bytes,
        }
        for variant in variants(plan)
    ]


def _variants_text(plan: MemoryPlan) -> str:
    """KV and chats of each cache, at full length and on average."""
    head = f"\n{plan.workload.concurrency:,} chats in{'':13}{'KV, all full':>14}{'half way':>12}{'needs':>12}"
    fits = {True: "fits", False: "does not fit", None: ""}
    lines = [head + ("" if plan.memory_bytes is None else f"{'chats, full':>14}{'half way':>10}")]
    for variant in variants(plan):
        full, average = variant.full, variant.average
        sizes = (full.kv_bytes_total, average.kv_bytes_total, full.needed_bytes)
        line = f"{variant.name:24}" + "".join(f"{_gib(size):>{w}}" for size, w in zip(sizes, (14, 12, 12), strict=True))
        if plan.memory_bytes is not None:
            verdict = "fits on average" if average.fits and not full.fits else fits[full.fits]
            line += f"{full.max_concurrency:>14,}{average.max_concurrency:>10,}  {verdict}"
        lines.append(line)
    return "\n".join(lines) + "\n"


def _advice(plan: MemoryPlan) -> list[str]:
    advice = []
    if plan.layout.kv_cache_dtype == "auto":
        advice.append("--kv-cache-dtype int8/hadamard takes about half of 16 bits; docs/kv-cache.md says what it costs")
    if plan.workload.shared_tokens == 0 and plan.workload.concurrency > 1:
        advice.append("a system prompt that all chats share is held once: --shared-tokens counts it so")
    if plan.fits is False and plan.max_concurrency:
        advice.append(f"serve at most {plan.max_concurrency:,} chats, or {plan.max_context_tokens:,} tokens each")
    if plan.fits is False:
        advice.append(f"all {plan.workload.concurrency:,} chats need {_gib(plan.needed_bytes)}")
    if plan.fits is False and plan.fixed.weights:
        lighter = replace(plan, fixed=replace(plan.fixed, weights=plan.fixed.weights // 2))
        advice.append(f"with weights of half the bytes {lighter.max_concurrency:,} chats fit")
    if plan.fits is False and not plan.max_concurrency:
        advice.append("not one chat fits: more memory, fewer layers in 16 bits, or a smaller model")
    return advice


def parse_memory(text: str) -> int:
    """Read bytes: `24GiB` or `24G` (2^30), `24GB` (10^9); a bare number is GiB, from a million on bytes."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*([kmgt]?i?b?)", text.strip().lower())
    if match is None or float(match[1]) <= 0:
        raise argparse.ArgumentTypeError(f"got {text!r}, wanted a size such as 24GiB, 24GB or 500MiB")
    value, unit = float(match[1]), match[2]
    if unit == "" and value >= _BYTES_FROM:
        return int(value)
    factor = _DECIMAL_UNITS.get(unit) or _UNITS.get(unit.removesuffix("b").removesuffix("i") or unit)
    if factor is None:
        raise argparse.ArgumentTypeError(f"got {text!r}, wanted a size such as 24GiB, 24GB or 500MiB")
    return int(value * factor)


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / GIB:.1f} GiB" if num_bytes >= GIB / 10 else f"{num_bytes / 2**20:.1f} MiB"


def _positive(text: str) -> int:
    value = int(text) if text.isdecimal() else 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"got {text!r}, wanted a whole number of at least 1")
    return value


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="prefixgate plan",
        usage="prefixgate plan MODEL [OPTIONS], or prefixgate plan --layers N --kv-heads N --head-dim N [OPTIONS]",
        description=__doc__,
        allow_abbrev=False,
    )
    parser.add_argument("model", nargs="?", metavar="MODEL", help="alias, folder, GGUF file or hub id; or give a shape")
    parser.add_argument("--model-dir", type=Path, help="folder of pulled models")
    parser.add_argument("--layers", type=_positive, help="of a shape without a model; then only the cache is counted")
    parser.add_argument("--weights", type=parse_memory, metavar="SIZE", help="of a shape: its weights, such as 14GB")
    parser.add_argument("--kv-heads", type=_positive)
    parser.add_argument("--head-dim", type=_positive)
    parser.add_argument("--concurrency", type=_positive, default=1, help="chats at the same time (default: 1)")
    parser.add_argument("--context", type=_positive, help="tokens of each (default: the model's limit, or 2048)")
    parser.add_argument("--shared-tokens", type=int, default=0, help="of those, a prefix that all share (default: 0)")
    parser.add_argument(
        "--kv-cache-dtype",
        choices=KV_FORMATS,
        help="format of the cache; auto: 16 bits (default: int8/hadamard, as serve has it; of a shape: auto)",
    )
    parser.add_argument("--kv-skip-layers", default=SKIP_AUTO, help="none, auto, or a list: 0,5 or first:1,last:4")
    parser.add_argument("--block-size", type=int, choices=(8, 16, 32, 64), default=32)
    parser.add_argument("--dtype", choices=sorted(_ITEM_SIZES), default="auto", help="of the model (auto: 16 bits)")
    parser.add_argument(
        "--quantization", choices=("none", "int8"), default="none", help="of the weights (default: none)"
    )
    parser.add_argument("--max-num-batched-tokens", type=_positive, default=2048, help="tokens of the largest step")
    parser.add_argument("--memory", type=parse_memory, metavar="SIZE", help="such as 24GiB; a bare number is GiB")
    parser.add_argument("--compare", action="store_true", help="the same chats contiguous, paged, shared and in int8")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser


if __name__ == "__main__":
    sys.exit(main())
