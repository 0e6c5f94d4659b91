"""Compile the Triton kernels ahead of time for sm_80 and sm_90, without a GPU, and report what they use.

python -m benchmarks.aot [--json FILE] [--only NAME]

Registers a thread, bytes spilled to local memory, bytes of shared memory, and the instructions a warp of the loop over
whole tiles. A spill that ALLOWED_SPILLS does not name makes exit status 1. The sizes, constants and launch
settings are those of the launchers for the layer and query named, so that a change there shows here.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from kernels.gpu import copy_blocks, paged_decode, paged_prefill, shared_prefix_decode, store_kv
from kernels.gpu.plan import TritonPlan, Tuning
from kernels.layout import LayerKV
from kernels.plan import PagedBatch
from kernels.quant import parse_kv_format

ALLOWED_SPILLS: dict[str, int] = {}
"""Bytes by name of variant; empty: none spills."""
NVIDIA_TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"


@dataclass(frozen=True, slots=True)
class Variant:
    """A kernel for one layer and query, on one architecture."""

    kernel: str
    format_name: str
    head_dim: int
    group: int
    arch: int

    @property
    def name(self) -> str:
        """What the report calls it."""
        return f"{self.kernel}-{self.format_name}-D{self.head_dim}-G{self.group}-sm{self.arch}"


@dataclass(frozen=True, slots=True)
class Usage:
    """What ptxas says."""

    name: str
    num_warps: int
    registers: int
    spilled_bytes: int
    shared_bytes: int
    loop_instructions: int


def variants() -> list[Variant]:
    """The named list: at most 24."""
    always = [kernel for kernel in KERNELS if kernel != "close"]
    found = [Variant(kernel, "int8/per_token", 128, 4, arch) for kernel in always for arch in (80, 90)]
    found += [Variant(kernel, "int8/per_channel", 128, 4, 90) for kernel in ("decode", "close")]
    for format_name, head_dim, group in (("auto", 128, 4), ("int8/per_token", 256, 2), ("int8/per_group_32", 128, 4)):
        found += [Variant(kernel, format_name, head_dim, group, 90) for kernel in ("decode", "prefill")]
    found += [Variant("decode", "int8/hadamard", 64, 3, arch) for arch in (80, 90)]
    found += [Variant("store", "int8/hadamard", head_dim, 4, 90) for head_dim in (80, 128)]
    return found


class Recorder:
    """Stands in for a kernel: keeps the arguments of a launch instead of launching."""

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel
        self.arguments: dict[str, Any] = {}
        self.options: dict[str, Any] = {}

    def __getitem__(self, _grid: object) -> Callable[..., None]:
        return self._launch

    def _launch(self, *args: Any, **kwargs: Any) -> None:
        names = self.kernel.arg_names
        self.arguments = dict(zip(names, args, strict=False))
        for name, value in kwargs.items():
            (self.arguments if name in names else self.options)[name] = value


KERNELS = {
    "store": (store_kv, "_store_kv_kernel"),
    "close": (store_kv, "_close_blocks_kernel"),
    "decode": (paged_decode, "_paged_decode_kernel"),
    "merge": (paged_decode, "_merge_partials_kernel"),
    "prefill": (paged_prefill, "_paged_prefill_kernel"),
    "shared": (shared_prefix_decode, "_shared_prefix_decode_kernel"),
    "copy": (copy_blocks, "_copy_blocks_kernel"),
}


def record(variant: Variant) -> Recorder:
    """Run the launchers of a step with a recorder in the kernel's place, on tensors that hold no memory."""
    recorders = {name: Recorder(getattr(*where)) for name, where in KERNELS.items()}
    for name, (module, attribute) in KERNELS.items():
        setattr(module, attribute, recorders[name])
    try:
        _launch_everything(variant)
    finally:
        for name, (module, attribute) in KERNELS.items():
            setattr(module, attribute, recorders[name].kernel)
    return recorders[variant.kernel]


def _launch_everything(variant: Variant) -> None:
    """A step of decoding requests with a common prefix and of one chunk, and a copy."""
    num_kv_heads, head_dim, block_size = 8, variant.head_dim, 32
    kv_format = parse_kv_format(variant.format_name)
    shape = (64, num_kv_heads, block_size)
    dtype = torch.int8 if kv_format.quantized else torch.bfloat16
    caches = [torch.empty((*shape, head_dim), dtype=dtype, device="meta") for _ in range(2)]
    per_token, per_channel = (*shape, kv_format.num_groups(head_dim)), (*shape[:2], head_dim)
    scale_shapes = (per_channel if kv_format.per_channel_keys else per_token, per_token) if kv_format.quantized else ()
    scales = [torch.empty(scale_shape, dtype=torch.float16, device="meta") for scale_shape in scale_shapes]
    key_open = torch.empty_like(caches[0], dtype=torch.bfloat16) if kv_format.per_channel_keys else None
    layer = LayerKV(kv_format, *caches, *scales, key_open=key_open)

    query_lens, seq_lens = np.array([*[1] * 16, 100]), np.array([*[1008] * 16, 200])
    num_tokens = int(query_lens.sum())
    batch = PagedBatch(
        slot_mapping=np.zeros(num_tokens, dtype=np.int64),
        query_start_loc=np.concatenate(([0], np.cumsum(query_lens))),
        seq_lens=seq_lens,
        block_tables=np.zeros((len(seq_lens), 32), dtype=np.int64),
        open_slots=np.zeros((len(seq_lens), 32), dtype=np.int64),
    )
    plan = TritonPlan.build(batch, layer, tuning=Tuning(split_tokens=256, cascade_min_tokens=512))
    query, key, value = (
        torch.empty((num_tokens, heads, head_dim), dtype=torch.bfloat16, device="meta")
        for heads in (num_kv_heads * variant.group, num_kv_heads, num_kv_heads)
    )
    rotary = torch.empty(num_tokens, head_dim, device="meta"), torch.empty(num_tokens, head_dim, device="meta")
    rotated = plan.store_kv(query, key, value, rotary, layer)
    plan.paged_attention(rotated, layer, head_dim**-0.5)
    copy_blocks.copy_blocks(layer.tensors, [(0, 1, block_size)])


def compile_variant(variant: Variant) -> Usage:
    """Compile what the launcher would."""
    launch = record(variant)
    names = launch.kernel.arg_names
    constants, signature, attributes = {}, {}, {}
    for index, name in enumerate(names):
        value = launch.arguments[name]
        signature[name] = _type(value) if not name.isupper() else "constexpr"
        if signature[name] == "constexpr":
            constants[name] = value
        elif isinstance(value, torch.Tensor) or (isinstance(value, int) and value % 16 == 0):
            attributes[index,] = [["tt.divisibility", 16]]
    source = ASTSource(launch.kernel, signature, constants, attributes)
    compiled = triton.compile(source, target=GPUTarget("cuda", variant.arch, 32), options=launch.options)
    return _read_cubin(variant.name, compiled.asm["cubin"], compiled.metadata)


def _type(value: object) -> str:
    if isinstance(value, torch.Tensor):
        return "*" + TYPES[value.dtype]
    return {int: "i32", float: "fp32", type(None): "constexpr"}[type(value)]


TYPES = {
    torch.int8: "i8", torch.int32: "i32", torch.int64: "i64", torch.bool: "i1", torch.float16: "fp16",
    torch.bfloat16: "bf16", torch.float32: "fp32",
}  # fmt: skip


def _read_cubin(name: str, cubin: bytes, metadata: Any) -> Usage:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "kernel.cubin"
        file.write_bytes(cubin)
        usage = _tool("cuobjdump", "--dump-resource-usage", str(file))
        assembly = _tool("nvdisasm", "-c", str(file))
    registers, stack, local = (int(re.findall(rf"{field}:(\d+)", usage)[-1]) for field in ("REG", "STACK", "LOCAL"))
    return Usage(name, metadata.num_warps, registers, stack + local, metadata.shared, _longest_loop(assembly))


def _tool(tool: str, *arguments: str) -> str:
    return subprocess.run([NVIDIA_TOOLS / tool, *arguments], capture_output=True, text=True, check=True).stdout


def _longest_loop(assembly: str) -> int:
    """Instructions of the longest loop that copies to shared memory while it computes, else of the longest."""
    labels: dict[str, int] = {}
    instructions: list[str] = []
    loops: list[tuple[bool, int]] = [(False, 0)]
    for line in assembly.splitlines():
        if label := re.match(r"\s*(\.L_\S+):", line):
            labels[label[1]] = len(instructions)
        elif instruction := re.match(r"\s+/\*[0-9a-f]+\*/\s+(.*?);", line):
            instructions.append(instruction[1])
            target = re.search(r"BRA.*`\((\.L_\S+)\)", instruction[1])
            if target and target[1] in labels:
                body = instructions[labels[target[1]] :]
                loops.append((any("LDGSTS" in each for each in body), len(body)))
    return max(loops)[1]


def main() -> int:
    """Print the report; 1 if something spills."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the report there, too")
    parser.add_argument("--only", default="", help="variants whose name contains this")
    args = parser.parse_args()
    chosen = [variant for variant in variants() if args.only in variant.name]
    with ProcessPoolExecutor(max_workers=2, mp_context=get_context("spawn")) as pool:
        report = list(pool.map(compile_variant, chosen))
    print(f"triton {triton.__version__}, {len(report)} variants")
    print(f"{'variant':44} {'warps':>5} {'registers':>9} {'spilled B':>9} {'shared B':>8} {'loop instr.':>11}")
    spilling = []
    for usage in report:
        print(
            f"{usage.name:44} {usage.num_warps:5} {usage.registers:9} {usage.spilled_bytes:9} {usage.shared_bytes:8} "
            f"{usage.loop_instructions:11}"
        )
        if usage.spilled_bytes > ALLOWED_SPILLS.get(usage.name, 0):
            spilling.append(usage.name)
    if args.json:
        args.json.write_text(json.dumps([asdict(usage) for usage in report], indent=1) + "\n")
    print(f"spills: {', '.join(spilling) or 'none'}")
    return bool(spilling)


if __name__ == "__main__":
    sys.exit(main())
