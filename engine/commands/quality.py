"""`prefixgate quality`: what int8 weights and each format of the KV cache cost in answers, against neither.

Measured through the model, the cache and the kernels that serve, in fp32, so that the format's own error is not lost
among other roundings. Exit status 1: a served format is over a gate.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from engine.errors import EngineError
from engine.kv_layout import SKIP_AUTO, KVLayout, parse_skip_layers
from engine.kv_probe import key_outlier_ratios, outlier_layers
from engine.loader import choose_device, load_model
from engine.memory_plan import num_parameters
from engine.model_config import ModelConfig
from engine.model_runner import choose_backend
from engine.model_store import resolve
from engine.models.interface import Model
from engine.quality.answers import read_questions
from engine.quality.gates import gates_for
from engine.quality.measure import NOISE_FLOOR, Bench
from engine.quality.page import render
from engine.quality.schemes import INT8_WEIGHTS, Scheme, parse_scheme
from engine.quality.session import Session
from engine.quality.text import Text
from engine.quality.twin import load_twin
from engine.weight_format import INT8, choose_quantization

DEFAULT_FORMATS = "int8/hadamard,int8/per_token"
_PLAIN, _ROTATED = "plain", "rotated"
_OPTIONS: dict[str, dict[str, Any]] = {
    _PLAIN: {},
    _ROTATED: {"rotate_values": True},
    INT8_WEIGHTS: {"quantization": "int8"},
}
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and report; returns the exit status."""
    args = _parser().parse_args(argv)
    try:
        schemes = [parse_scheme(name) for name in args.formats.split(",")]
        report = _Report(args, schemes).build()
    except (EngineError, OSError, ValueError) as error:
        print(f"prefixgate quality: {error}", file=sys.stderr)
        return 2
    text = json.dumps(report, indent=1)
    if args.json_file:
        args.json_file.write_text(text + "\n", encoding="utf-8")
    if args.html_file:
        args.html_file.write_text(render(report), encoding="utf-8")
    print(text if args.json else _summary(report))
    return 0 if report["passed"] else 1


class _Report:
    """Loads what the rows need and puts their figures together."""

    def __init__(self, args: argparse.Namespace, schemes: list[Scheme]) -> None:
        self._args = args
        self._schemes = schemes
        self._folder = resolve(args.model, args.model_dir).folder
        self._config = ModelConfig.from_folder(self._folder)
        self._dtype = _DTYPES[args.dtype]
        self._device = choose_device(args.device)
        self._backend = args.backend or choose_backend(self._device, self._config.head_dim)
        if any(scheme.int8_weights for scheme in schemes):
            choose_quantization(
                INT8, self._config, dtype=args.dtype, device=self._device
            )  # refuses where it cannot run
            if args.multi_head:
                raise ValueError(f"--multi-head: wanted no {INT8_WEIGHTS} among --formats")
        try:
            self._text = Text.read(args.text, self._folder)
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
            raise ValueError(f"--text: {args.text}: {reason}") from error

    def build(self) -> dict[str, Any]:
        """Run everything that was asked for."""
        args = self._args
        models = self._load(twin=False)
        ratios = key_outlier_ratios(models[_PLAIN], dtype=self._dtype, device=self._device, backend=self._backend)
        bench = self._bench(models, outlier_layers(ratios))
        window = args.window or self._config.max_position
        windows = self._text.windows(window, args.tokens)
        rows = bench.text(windows)
        floor = rows[NOISE_FLOOR]
        unquantized: dict[str, Any] = {"ppl": floor["ppl"] / (1 + floor["ppl_delta_ratio"])}
        for base, more in self._behaviour(bench):
            unquantized |= base
            rows = {name: row | more[name] for name, row in rows.items()}
        gates = self._judge(rows, unquantized, window)
        report = {
            "model": args.model,
            "num_parameters": num_parameters(self._config),
            "dtype": args.dtype,
            "device": str(self._device),
            "backend": self._backend,
            "num_tokens": sum(map(len, windows)),
            "window": window,
            "unquantized": unquantized,
            "noise_floor": rows.pop(NOISE_FLOOR),
            "formats": rows,
            "key_outliers": [[round(ratio, 2) for ratio in heads] for heads in ratios.tolist()],
            "gates": gates,
            "passed": not any(gates.values()),
        }
        if args.multi_head:
            del bench, models
            report["multi_head"] = self._bench(self._load(twin=True), outlier_layers(ratios)).text(windows)
        return report

    def _behaviour(self, bench: Bench) -> list[tuple[dict[str, Any], dict[str, dict[str, Any]]]]:
        args, found = self._args, []
        if args.questions:
            prompts = read_questions(self._text.encode_chat, args.questions)
            found.append(bench.answers(prompts, args.answer_tokens))
        if args.needles:
            tokenizer = self._text
            found.append(
                bench.needles(
                    tokenizer.token_ids,
                    tokenizer.encode,
                    tokenizer.decode,
                    num_tokens=args.needle_tokens,
                    num_needles=args.needles,
                )
            )
        return found

    def _judge(self, rows: dict[str, Any], unquantized: dict[str, Any], window: int) -> dict[str, list[str]]:
        size = num_parameters(self._config)
        served = [scheme.name for scheme in self._schemes if scheme.served]
        return {
            name: gates_for(name, num_parameters=size, window=window).breaches(rows[name], unquantized)
            for name in served
        }

    def _load(self, *, twin: bool) -> dict[str, Model]:
        """The model, and once more for each other kind of weights that a row needs."""
        kinds = {_PLAIN} | {_kind(scheme) for scheme in self._schemes}
        load = functools.partial(
            load_twin if twin else load_model,
            self._folder,
            self._config,
            dtype=self._dtype,
            device=self._device,
            max_position=self._config.max_position,
        )
        return {kind: load(**_OPTIONS[kind]) for kind in kinds}

    def _bench(self, models: dict[str, Model], outliers: frozenset[int]) -> Bench:
        base = self._session(models[_PLAIN], Scheme("auto", "auto", "none"), outliers)
        rows = {scheme.name: self._session(models[_kind(scheme)], scheme, outliers) for scheme in self._schemes}
        return Bench.with_noise_floor(base, rows, _say)

    def _session(self, model: Model, scheme: Scheme, outliers: frozenset[int]) -> Session:
        config, skip = model.config, scheme.kv_skip_layers
        layout = KVLayout(
            num_layers=config.num_layers,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            kv_cache_dtype=scheme.kv_cache_dtype,
            skipped_layers=outliers if skip == SKIP_AUTO else parse_skip_layers(skip, num_layers=config.num_layers),
            block_size=self._args.block_size,
            itemsize=self._dtype.itemsize,
        )
        # of a format with open blocks, torch has the only kernels on a CPU
        backend = "torch" if layout.open_block_bytes and self._backend == "numba" else self._backend
        return Session(model, layout, self._dtype, self._device, backend, scheme.emulation, chunk=self._args.chunk)


def _kind(scheme: Scheme) -> str:
    """Which weights a row needs."""
    if scheme.int8_weights:
        return INT8_WEIGHTS
    return _ROTATED if scheme.kv_cache_dtype == "int8/hadamard" else _PLAIN


def _summary(report: dict[str, Any]) -> str:
    lines = [f"{'':32} {'PPL':>9} {'ΔPPL':>9} {'mean KL':>10} {'99.9 % KL':>10} {'top-1':>8} {'ROUGE-L':>8}"]
    for name, row in {"noise floor": report["noise_floor"], **report["formats"]}.items():
        lines.append(
            f"{name:32} {row['ppl']:9.3f} {100 * row['ppl_delta_ratio']:8.3f}% {row['kl_mean']:10.6f} "
            f"{row['kl_p999']:10.5f} {100 * row['top1_agreement']:7.2f}% {row.get('rouge_l', math.nan):8.3f}"
        )
    lines += [f"{name}: over the gate: {'; '.join(breaches)}" for name, breaches in report["gates"].items() if breaches]
    return "\n".join(lines)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="prefixgate quality",
        usage="prefixgate quality MODEL --text FILE [OPTIONS]",
        description=__doc__,
        allow_abbrev=False,
    )
    parser.add_argument("model", metavar="MODEL", help="alias, folder, GGUF file or hub id")
    parser.add_argument("--model-dir", type=Path, help="folder of pulled models")
    parser.add_argument("--text", type=Path, required=True, metavar="FILE", help="plain text to predict")
    parser.add_argument(
        "--formats",
        default=DEFAULT_FORMATS,
        metavar="LIST",
        help="formats of --kv-cache-dtype, with layers to skip as int8/per_token@first:1+last:4 or @auto; only here: "
        f"fp8_e4m3, int4/per_token, int4/hadamard, int8/one_scale; w8a8 or w8a8:FORMAT: with --quantization int8 (default: {DEFAULT_FORMATS})",
    )
    parser.add_argument("--json-file", type=Path, metavar="F", help="write the report there")
    parser.add_argument("--html-file", type=Path, metavar="F", help="write a page with plots there")
    parser.add_argument("--json", action="store_true", help="print the report instead of a table")
    parser.add_argument("--tokens", type=int, default=100_000, help="of the text to use (default: 100000)")
    parser.add_argument("--window", type=int, default=2048, help="tokens of one text; 0: the model's limit (2048)")
    parser.add_argument("--chunk", type=int, default=512, help="tokens a step (default: 512)")
    parser.add_argument("--block-size", type=int, choices=(8, 16, 32, 64), default=32)
    parser.add_argument("--questions", type=int, default=40, help="to answer; 0: none (default: 40)")
    parser.add_argument("--answer-tokens", type=int, default=400, help="of each answer (default: 400)")
    parser.add_argument("--needles", type=int, default=3, help="at each depth; 0: none (default: 3)")
    parser.add_argument("--needle-tokens", type=int, default=1024, help="length of a needle's text (default: 1024)")
    parser.add_argument("--multi-head", action="store_true", help="measure the text with KV heads repeated as well")
    parser.add_argument("--dtype", choices=sorted(_DTYPES), default="float32", help="to compute in")
    parser.add_argument("--device", default="auto")
    parser.add_argument(
        "--backend", choices=("torch", "numba", "triton", "reference"), help="kernels (default: as serve)"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
