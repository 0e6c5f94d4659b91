"""Size and memory of the pool."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from engine import kv_cache
from engine.config import CacheConfig, EngineConfig, SchedulerConfig
from engine.errors import ConfigError
from engine.kv_cache import KVCache, available_memory, choose_num_blocks
from engine.kv_layout import KVLayout
from engine.memory_plan import activation_bytes
from engine.model_config import ModelConfig
from engine.rope_config import RopeConfig
from prefixcache.interface import CopyOp

CPU = torch.device("cpu")
MODEL = ModelConfig(
    architecture="LlamaForCausalLM",
    num_layers=30,
    hidden_size=576,
    intermediate_size=1536,
    num_heads=9,
    num_kv_heads=3,
    head_dim=64,
    vocab_size=49_152,
    max_position=8192,
    norm_eps=1e-5,
    rope=RopeConfig(100_000.0),
    tied_embeddings=True,
    qkv_bias=False,
    o_bias=False,
    mlp_bias=False,
    qk_norm=False,
    eos_token_ids=(2,),
)


LAYOUT = KVLayout(30, 3, 64, itemsize=4)


def make_config(*, max_model_len=None, max_num_seqs=32, **cache):
    return EngineConfig(
        model_path="-",
        max_model_len=max_model_len,
        cache=CacheConfig(**cache),
        scheduler=SchedulerConfig(max_num_seqs=max_num_seqs),
    )


def test_num_blocks_is_what_was_asked_for():
    assert choose_num_blocks(make_config(num_blocks=7), MODEL, LAYOUT, CPU) == 7


def test_kv_cache_memory_is_the_size_of_the_pool_to_the_block():
    config = make_config(kv_cache_memory=10 * LAYOUT.block_bytes + 1)
    assert choose_num_blocks(config, MODEL, LAYOUT, CPU) == 10


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"kv_cache_memory": 1 << 50}, r"--kv-cache-memory: [0-9]+ blocks need 1048576.0 GiB, and .* GiB are free"),
        ({"num_blocks": 10**9}, r"--num-blocks: 1000000000 blocks need .* GiB are free on cpu"),
        ({"kv_cache_memory": LAYOUT.block_bytes}, "--kv-cache-memory: got 1 blocks"),
    ],
    ids=["memory", "blocks", "too-small"],
)
def test_a_pool_that_cannot_be_had_is_refused_before_it_is_allocated(asked, message):
    with pytest.raises(ConfigError, match=message):
        choose_num_blocks(make_config(**asked), MODEL, LAYOUT, CPU)


@pytest.mark.parametrize(
    "bad",
    [{"kv_cache_memory": 0}, {"gpu_memory_utilization": 0}, {"num_blocks": 9, "kv_cache_memory": 1 << 30}],
    ids=str,
)
def test_sizes_that_make_no_sense_are_refused(bad):
    with pytest.raises(ValueError, match=next(iter(bad))):
        CacheConfig(**bad)


def test_num_blocks_is_what_the_requests_can_use():
    config = make_config(max_model_len=100, max_num_seqs=2)
    assert choose_num_blocks(config, MODEL, LAYOUT, CPU) == 2 * (4 + 1)


def test_num_blocks_on_cpu_stays_within_a_fifth_of_the_memory_and_2_gib():
    num_blocks = choose_num_blocks(make_config(), MODEL, LAYOUT, CPU)
    size = num_blocks * LAYOUT.block_bytes
    assert size <= 2 << 30
    assert size <= 0.2 * available_memory() * 1.05  # others allocate meanwhile


def test_too_little_memory_is_a_config_error():
    giant = dataclasses.replace(LAYOUT, num_layers=100_000, num_kv_heads=1000)
    with pytest.raises(ConfigError, match="does not hold two blocks"):
        choose_num_blocks(make_config(), MODEL, giant, CPU)
    with pytest.raises(ConfigError, match="--num-blocks: 1000000000 blocks need"):
        KVCache.allocate(LAYOUT, num_blocks=10**9, dtype=torch.float32, device=CPU)


def test_pool_has_the_documented_layout_and_is_zero():
    layout = KVLayout(4, 3, 64, "int8/per_group_32", frozenset({1}), block_size=8)
    cache = KVCache.allocate(layout, num_blocks=5, dtype=torch.bfloat16, device=CPU)
    assert [layer.format.name for layer in cache.layers] == ["int8/per_group_32", "auto", *["int8/per_group_32"] * 2]
    quantized, plain = cache.layers[0], cache.layers[1]
    assert quantized.key.shape == quantized.value.shape == plain.key.shape == (5, 3, 8, 64)
    assert quantized.key_scale.shape == quantized.value_scale.shape == (5, 3, 8, 2)
    assert (quantized.key.dtype, quantized.key_scale.dtype, plain.key.dtype) == (
        torch.int8,
        torch.float16,
        torch.bfloat16,
    )
    assert plain.key_scale is None
    assert not any(tensor.any() for layer in cache.layers for tensor in layer.tensors)
    assert cache.num_blocks == 5


def test_copies_and_clears_take_scales_along():
    layout = KVLayout(3, 3, 64, "int8/per_token", frozenset({1}), block_size=8)
    cache = KVCache.allocate(layout, num_blocks=5, dtype=torch.float32, device=CPU)
    tensors = [tensor for layer in cache.layers for tensor in layer.tensors]
    for tensor in tensors:
        tensor[4] = 1
    cache.copy([CopyOp(src=4, dst=0, num_tokens=3), CopyOp(0, 2, 2)])
    for tensor in tensors:
        assert (tensor[0, :, :3] == 1).all()
        assert not tensor[0, :, 3:].any()
        assert (tensor[2, :, :2] == 1).all()
        assert not tensor[2, :, 2:].any()
    cache.clear_blocks([4])
    assert not any(tensor[4].any() for tensor in tensors)


@pytest.mark.parametrize(
    ("limit", "expected"), [("max", 8 << 20), ("3145728", 2 << 20), ("500000", 0)], ids=["none", "smaller", "exceeded"]
)
def test_available_memory_heeds_the_containers_limit(limit, expected, tmp_path):
    (tmp_path / "meminfo").write_text("MemTotal: 999 kB\nMemAvailable:   8192 kB\n")
    (tmp_path / "memory.max").write_text(f"{limit}\n")
    (tmp_path / "memory.current").write_text("1048576\n")
    assert available_memory(tmp_path / "meminfo", tmp_path) == expected


def test_available_memory_without_proc_is_half_the_machine(tmp_path):
    assert available_memory(tmp_path / "none", tmp_path) > 0


@pytest.mark.parametrize("share", [0.85, 0.3])
def test_cuda_takes_its_share_less_what_is_in_use_and_the_largest_step(share, monkeypatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (70 << 30, 80 << 30))
    config = make_config(gpu_memory_utilization=share)
    step = activation_bytes(MODEL, itemsize=4, num_tokens=2048, num_sampled=32)
    spare = kv_cache._spare_bytes(config, torch.device("cuda"), step)
    assert spare == int(share * (80 << 30)) - (10 << 30) - step
    assert kv_cache._spare_bytes(config, torch.device("cuda"), 90 << 30) == 0
