"""The worker against `prefixgate plan`: what it allocates, and how many requests it runs at once."""

from __future__ import annotations

import dataclasses
import json

import pytest
import torch

from engine.commands.plan import main as plan_main
from engine.config import CacheConfig, EngineConfig, SchedulerConfig
from engine.memory_check import disagreements, tensor_bytes
from engine.memory_plan import MAX_NUM_SEQS, num_parameters, weight_bytes
from engine.model_runner import ModelRunner
from tests.engine.tiny_model import save_tiny_model


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return save_tiny_model(tmp_path_factory.mktemp("tiny"))


def make_runner(folder, num_blocks, **scheduler):
    cache = CacheConfig(block_size=8, num_blocks=num_blocks, kv_cache_dtype="auto")
    scheduling = SchedulerConfig(**scheduler)
    return ModelRunner(
        EngineConfig(model_path=str(folder), dtype="float32", device="cpu", cache=cache, scheduler=scheduling)
    )


@pytest.mark.parametrize(("num_blocks", "expected"), [(64, 1), (640, 10), (10**5, MAX_NUM_SEQS)])
def test_number_of_requests_at_once_is_what_plan_says(tiny, num_blocks, expected, capsys):
    runner = make_runner(tiny, num_blocks)
    assert runner.max_num_seqs == expected
    memory = ["--memory", f"{num_blocks * runner.kv_layout.block_bytes}b", "--context", str(runner.max_model_len)]
    shape = ["--layers", "3", "--kv-heads", "2", "--head-dim", "16", "--dtype", "float32", "--block-size", "8"]
    assert plan_main([*shape, *memory, "--json"]) == 0
    assert min(json.loads(capsys.readouterr().out)["max_concurrency"], MAX_NUM_SEQS) == expected


def test_number_of_requests_at_once_that_was_asked_for_is_kept(tiny):
    assert make_runner(tiny, 4, max_num_seqs=77).max_num_seqs == 77


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_the_weights_and_the_pool_are_what_plan_says_and_a_difference_is_told(tied, tmp_path):
    runner = make_runner(save_tiny_model(tmp_path, tie_word_embeddings=tied), 64)
    rotary = tensor_bytes(runner._model._rotary)
    weights = tensor_bytes(runner._model) - rotary
    assert weights == weight_bytes(runner.model_config, itemsize=4)
    assert (weights > 4 * num_parameters(runner.model_config)) == tied
    config, layout = runner.model_config, dataclasses.replace(runner.kv_layout, num_layers=1000)
    size = 10**4 * layout.block_bytes
    right = {
        "device": torch.device("cpu"),
        "int8_weights": False,
        "num_blocks": 10**4,
        "weights": weights,
        "kv_cache": int(1.02 * size),
    }
    assert disagreements(config, layout, **right) == []
    found = disagreements(config, layout, **right | {"kv_cache": int(1.04 * size), "weights": 1 << 30})
    assert [sentence.split(" take ")[0] for sentence in found] == ["memory: weights", "memory: the KV cache"]
