"""Speed of the Triton kernels on a GPU: medians of graph replays on random data, against a measured device copy.

Bytes are those that must move: codes, scales and block ids of every token once. A replay runs several layers of their
own, so that none finds its cache in L2.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch.nn import functional

from benchmarks.gpu_rows import Row, at_least, at_most
from kernels import ops
from kernels.layout import LayerKV
from kernels.plan import PagedBatch, StepPlan
from kernels.quant import dequantize, parse_kv_format

BLOCK_SIZE, NUM_HEADS, NUM_KV_HEADS, HEAD_DIM = 32, 32, 8, 128
SCALE = HEAD_DIM**-0.5
BYTES_A_REPLAY = 1 << 30
DTYPE = torch.bfloat16


@dataclass(frozen=True, slots=True)
class Load:
    """Decoding requests of one length, layers that they could be in, and their step."""

    batch: PagedBatch
    layers: tuple[LayerKV, ...]
    query: torch.Tensor
    bytes_a_layer: int

    def seconds(self, *, cascade: bool = True) -> float:
        """Of one layer's attention."""
        plan = ops.plan_step(self.batch, self.layers[0], backend="triton", cascade=cascade)
        return replay_seconds(lambda layer: attend(self.query, layer, plan), self.layers)


def measure_bandwidth(device: torch.device) -> Iterator[Row]:
    """Decode at 256 MB and more a layer, and at one long request."""
    copied = copy_bytes_a_second(device)
    yield Row("device copy, bytes read plus written", copied / 1e12, "TB/s")
    for name, num_requests, length, bound in (
        ("int8/per_token", 64, 2048, 0.80),
        ("int8/hadamard", 64, 2048, 0.80),
        ("int8/per_token", 32, 16384, 0.80),
        ("int8/per_token", 1, 32768, 0.65),
        ("auto", 64, 2048, None),
        ("int8/per_group_64", 64, 2048, None),
    ):
        load = make_load(name, [length] * num_requests, device)
        share = load.bytes_a_layer / load.seconds() / copied
        what = f"{name}, {num_requests} x {length}, {load.bytes_a_layer >> 20} MB a layer: share of the copy"
        yield Row(what, share) if bound is None else at_least(what, share, bound)
    mixed = np.random.default_rng(1).integers(16, 8192, 64).tolist()
    load = make_load("int8/per_token", mixed, device)
    yield Row("int8/per_token, 64 of 16 to 8192: share of the copy", load.bytes_a_layer / load.seconds() / copied)


def measure_slope(device: torch.device) -> Iterator[Row]:
    """Time a token of context, INT8 against 16 bits."""
    lengths = (2048, 4096, 8192, 16384)
    slopes = {}
    for name in ("auto", "int8/per_token", "int8/hadamard"):
        seconds = [make_load(name, [length] * 32, device).seconds() for length in lengths]
        slopes[name] = float(np.polyfit([32 * length for length in lengths], seconds, 1)[0])
        yield Row(f"{name}: slope over {lengths} at 32 requests", slopes[name] * 1e12, "ps/token")
        if name != "auto":
            yield at_most(f"{name} against 16 bits: slope", slopes[name] / slopes["auto"], 0.56)


def compare_with_unfused(device: torch.device) -> Iterator[Row]:
    """The same attention as torch does it: gather the blocks, dequantize them, then scaled dot product attention."""
    num_requests, length = 16, 4096
    load = make_load("int8/per_token", [length] * num_requests, device)
    tables = torch.from_numpy(load.batch.block_tables).to(device)

    def unfused(layer: LayerKV) -> torch.Tensor:
        assert layer.key_scale is not None
        assert layer.value_scale is not None
        keys, values = (
            dequantize(cache[tables], scales[tables]).to(DTYPE).transpose(1, 2).flatten(2, 3)
            for cache, scales in ((layer.key, layer.key_scale), (layer.value, layer.value_scale))
        )
        return functional.scaled_dot_product_attention(
            load.query[:, :, None], keys, values, scale=SCALE, enable_gqa=True
        )

    fused, other = load.seconds(), replay_seconds(unfused, load.layers)
    yield Row(f"fused, {num_requests} x {length}", fused * 1e6, "us")
    yield Row("gather, dequantize, SDPA", other * 1e6, "us")
    yield at_least("fused is faster by", other / fused, 1.25)


def compare_cascade(device: torch.device) -> Iterator[Row]:
    """Requests behind a common prefix, read once or by each."""
    for num_requests, prefix, suffix in ((8, 2048, 256), (32, 2048, 256), (32, 8192, 256), (128, 2048, 512)):
        load = make_load("int8/per_token", [prefix + suffix] * num_requests, device, shared=prefix)
        gain = load.seconds(cascade=False) / load.seconds()
        yield Row(f"cascade, {num_requests} requests, {prefix} in common, {suffix} their own: faster by", gain)


def measure_store_and_prefill(device: torch.device) -> Iterator[Row]:
    """The write of a decode step, and a chunk of 2,048 behind a prefix of 2,048."""
    for name in ("auto", "int8/per_token", "int8/hadamard"):
        load = make_load(name, [2048] * 64, device)
        plan = ops.plan_step(load.batch, load.layers[0], backend="triton")
        new = torch.randn(64, NUM_HEADS + 2 * NUM_KV_HEADS, HEAD_DIM, device=device).to(DTYPE)
        query, key, value = new.split((NUM_HEADS, NUM_KV_HEADS, NUM_KV_HEADS), dim=1)
        rotary = torch.randn(64, HEAD_DIM, device=device), torch.randn(64, HEAD_DIM, device=device)
        store = replay_seconds(
            lambda layer, plan=plan, rows=(query, key, value), rotary=rotary: plan.store_kv(*rows, rotary, layer),
            load.layers,
        )
        yield Row(f"{name}: store_kv of 64 rows", store * 1e6, "us")
        chunk = replace(load.batch, query_start_loc=np.array([0, 2048]), seq_lens=np.array([4096]))
        chunk = replace(chunk, block_tables=chunk.block_tables[:2].reshape(1, -1), slot_mapping=np.arange(2048))
        prefill = ops.plan_step(chunk, load.layers[0], backend="triton")
        rows = torch.randn(2048, NUM_HEADS, HEAD_DIM, device=device).to(DTYPE)
        seconds = replay_seconds(lambda layer, plan=prefill, rows=rows: attend(rows, layer, plan), load.layers[:1])
        operations = 4 * NUM_HEADS * HEAD_DIM * sum(range(2049, 4097))
        yield Row(f"{name}: prefill of 2048 behind 2048", operations / seconds / 1e12, "TFLOP/s")


def attend(query: torch.Tensor, layer: LayerKV, plan: StepPlan) -> torch.Tensor:
    """One layer."""
    return ops.paged_attention(query, layer, plan, scale=SCALE)


def make_load(name: str, lengths: list[int], device: torch.device, *, shared: int = 0) -> Load:
    """Requests with shuffled blocks, `shared` first tokens in common."""
    num_blocks_each = [-(-length // BLOCK_SIZE) for length in lengths]
    common = shared // BLOCK_SIZE
    own = sum(each - common for each in num_blocks_each)
    ids = np.random.default_rng(0).permutation(common + own)
    tables = np.zeros((len(lengths), max(num_blocks_each)), dtype=np.int64)
    start = common
    for table, each in zip(tables, num_blocks_each, strict=True):
        table[:common] = ids[:common]
        table[common:each] = ids[start : start + each - common]
        start += each - common
    last = np.array(lengths) - 1
    slots = tables[np.arange(len(lengths)), last // BLOCK_SIZE] * BLOCK_SIZE + last % BLOCK_SIZE
    batch = PagedBatch(slots, np.arange(len(lengths) + 1), np.array(lengths), tables)

    layer = random_layer(name, common + own, device)
    bytes_a_token = sum(tensor.element_size() * tensor[0, :, 0].numel() for tensor in layer.tensors)
    bytes_a_layer = sum(lengths) * bytes_a_token + 4 * sum(num_blocks_each) * NUM_KV_HEADS
    pool_bytes = (common + own) * BLOCK_SIZE * bytes_a_token
    copies = max(1, BYTES_A_REPLAY // pool_bytes)
    layers = (layer, *(random_layer(name, common + own, device) for _ in range(copies - 1)))
    query = torch.randn(len(lengths), NUM_HEADS, HEAD_DIM, device=device).to(DTYPE)
    return Load(batch, layers, query, bytes_a_layer)


def random_layer(name: str, num_blocks: int, device: torch.device) -> LayerKV:
    """Normal values, or codes and scales of such."""
    kv_format = parse_kv_format(name)
    size = (num_blocks, NUM_KV_HEADS, BLOCK_SIZE, HEAD_DIM)
    if not kv_format.quantized:
        return LayerKV(kv_format, *(torch.randn(size, dtype=DTYPE, device=device) for _ in range(2)))
    codes = [torch.randint(-127, 128, size, dtype=torch.int8, device=device) for _ in range(2)]
    groups = (*size[:3], kv_format.num_groups(HEAD_DIM))
    scales = [(torch.rand(groups, device=device) * 0.02 + 0.01).half() for _ in range(2)]
    return LayerKV(kv_format, *codes, *scales)


def copy_bytes_a_second(device: torch.device) -> float:
    """Bytes read plus bytes written of a copy of 2 GiB."""
    source = torch.randint(0, 255, (2 << 30,), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * source.numel() / replay_seconds(target.copy_, (source,))


def replay_seconds(work: Callable[..., object], arguments: tuple[object, ...], *, repeats: int = 20) -> float:
    """Seconds of work(argument), the median over replays of a graph of one call with each argument."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):  # compiles, and fills what is laid out once
        for argument in arguments[:2]:
            work(argument)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for argument in arguments:
            work(argument)
    graph.replay()
    times = []
    for _ in range(repeats):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / 1e3 / len(arguments))
    return statistics.median(times)
