"""A step of the model runner against transformers: chunks, prefixes, batches, copies, poison."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.batch import ScheduledRequest, SchedulerOutput
from engine.config import CacheConfig, EngineConfig
from engine.errors import ConfigError
from engine.memory_plan import MAX_NUM_SEQS
from engine.messages import SamplingParams
from engine.model_runner import ModelRunner, physical_cores
from engine.sampler import Sampler
from prefixcache.interface import CopyOp
from tests.engine.tiny_model import MAX_POSITION, VOCAB_SIZE, reference_logits, save_tiny_model
from tests.support.real_model import model_folder

TOLERANCE = 1e-4  # logits of a few units; the bar is 1e-3
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10_000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN_ROPE = {
    "rope_type": "yarn",
    "rope_theta": 10_000.0,
    "factor": 8.0,
    "original_max_position_embeddings": 64,
    "beta_fast": 4.0,
}
VARIANTS = {
    "llama": ("llama", {}),
    "llama-tied": ("llama", {"tie_word_embeddings": True}),
    "llama-biases-llama3-rope": (
        "llama",
        {"attention_bias": True, "mlp_bias": True, "rope_parameters": LLAMA3_ROPE},
    ),
    "llama-linear-rope": ("llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 500.0, "factor": 2.0}}),
    "llama-yarn-rope": ("llama", {"rope_parameters": YARN_ROPE}),
    "llama-yarn-rope-untruncated": (
        "llama",
        {"rope_parameters": YARN_ROPE | {"truncate": False, "attention_factor": 0.7}},
    ),
    "mistral": ("mistral", {"num_key_value_heads": 1}),
    "mistral-window": ("mistral", {"sliding_window": 150}),
    "qwen2": ("qwen2", {}),
    "qwen2-window": ("qwen2", {"use_sliding_window": True, "sliding_window": 150, "max_window_layers": 1}),
    "qwen2-tied-yarn": ("qwen2", {"tie_word_embeddings": True, "rope_parameters": YARN_ROPE}),
    "qwen3": ("qwen3", {}),
    "qwen3-tied-yarn": ("qwen3", {"tie_word_embeddings": True, "rope_parameters": YARN_ROPE}),
}


class RecordingSampler(Sampler):
    """Samples, and keeps the logits."""

    def sample(self, logits, requests):
        self.logits = dict(zip((request.request_id for request in requests), logits.clone(), strict=True))
        return super().sample(logits, requests)


def make_runner(folder: Path, *, dtype: str = "float32", block_size: int = 8, num_blocks: int | None = 64, **options):
    """A runner and its recording sampler."""
    sampler = RecordingSampler()
    cache = CacheConfig(block_size=block_size, num_blocks=num_blocks, kv_cache_dtype="auto")
    config = EngineConfig(model_path=str(folder), dtype=dtype, device="cpu", cache=cache, **options)
    return ModelRunner(config, sampler=sampler), sampler


def schedule(
    name: str, token_ids: list[int], start: int, end: int, block_ids: list[int], *, sample: bool = True
) -> ScheduledRequest:
    """Tokens [start, end) of a prompt."""
    return ScheduledRequest(
        request_id=name,
        token_ids=np.array(token_ids[start:end], dtype=np.int32),
        num_computed_tokens=start,
        block_ids=block_ids,
        sampling=SamplingParams(max_tokens=8, temperature=0.0),
        seed=0,
        sample=sample,
    )


def make_prompt(length: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(3, VOCAB_SIZE, length).tolist()


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return save_tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.mark.parametrize(("kind", "changes"), VARIANTS.values(), ids=VARIANTS.keys())
def test_execute_in_chunks_gives_the_logits_of_transformers(kind, changes, tmp_path):
    prompt = make_prompt(150)
    expected = reference_logits(save_tiny_model(tmp_path, kind, **changes), prompt)
    runner, sampler = make_runner(tmp_path)
    blocks = list(range(5, 5 + 19))
    start = 0
    for size in (1, 7, 8, 9, 1, 64, 59, 1):
        output = runner.execute(SchedulerOutput([schedule("a", prompt, start, start + size, blocks)]))
        start += size
        torch.testing.assert_close(sampler.logits["a"], expected[start - 1], rtol=0, atol=TOLERANCE)
        assert output.token_ids == {"a": int(expected[start - 1].argmax())}
    assert start == len(prompt)


def test_execute_batch_with_a_shared_prefix_gives_the_logits_of_each_alone(tiny):
    shared = make_prompt(24)
    prompts = {
        name: shared + make_prompt(length, seed) for seed, (name, length) in enumerate({"a": 5, "b": 70}.items(), 1)
    }
    prompts["c"] = make_prompt(200, 9)
    tables = {"a": [0, 1, 2, 3], "b": [0, 1, 2, *range(10, 20)], "c": list(range(20, 46))}
    runner, sampler = make_runner(tiny)
    runner.execute(SchedulerOutput([schedule("a", prompts["a"], 0, 28, tables["a"], sample=False)]))
    runner.execute(SchedulerOutput([schedule("c", prompts["c"], 0, 199, tables["c"], sample=False)]))
    mixed = [("a", 28, 29), ("b", 24, 94), ("c", 199, 200)]
    output = runner.execute(
        SchedulerOutput([schedule(n, prompts[n], start, end, tables[n]) for n, start, end in mixed])
    )
    assert set(output.token_ids) == {"a", "b", "c"}
    for name, prompt in prompts.items():
        expected = reference_logits(tiny, prompt)[-1]
        torch.testing.assert_close(sampler.logits[name], expected, rtol=0, atol=TOLERANCE)


def test_execute_samples_only_where_asked(tiny):
    runner, sampler = make_runner(tiny)
    a, b = make_prompt(9, 1), make_prompt(20, 2)
    steps = [schedule("a", a, 0, 9, [0, 1], sample=False), schedule("b", b, 0, 20, [2, 3, 4])]
    assert set(runner.execute(SchedulerOutput(steps)).token_ids) == {"b"}
    torch.testing.assert_close(sampler.logits["b"], reference_logits(tiny, b)[-1], rtol=0, atol=TOLERANCE)
    assert runner.execute(SchedulerOutput([steps[0]])).token_ids == {}
    assert runner.execute(SchedulerOutput()).token_ids == {}


def test_execute_copies_before_the_forward_pass(tiny):
    runner, sampler = make_runner(tiny)
    first, second = make_prompt(16, 1), make_prompt(16, 2)
    second[:13] = first[:13]
    runner.execute(SchedulerOutput([schedule("a", first, 0, 16, [0, 1])]))
    step = schedule("b", second, 13, 16, [0, 7])
    runner.execute(SchedulerOutput([step], copies=[CopyOp(src=1, dst=30, num_tokens=6), CopyOp(30, 7, 5)]))
    torch.testing.assert_close(sampler.logits["b"], reference_logits(tiny, second)[-1], rtol=0, atol=TOLERANCE)


def test_execute_ignores_what_free_blocks_and_tail_slots_hold(tiny):
    runner, sampler = make_runner(tiny)
    for tensor in (tensor for layer in runner._cache.layers for tensor in layer.tensors):
        tensor.fill_(torch.nan)
    prompts = {"a": make_prompt(13, 1), "b": make_prompt(42, 2)}
    tables = {"a": [3, 9, 0, 0, 0, 0, 60], "b": [5, 6, 11, 12, 13, 14]}
    for start, end in ((0, -1), (-1, 0)):  # prefill, then decode, of different lengths
        steps = []
        for name, prompt in prompts.items():
            first, last = start % len(prompt), end % len(prompt) or len(prompt)
            steps.append(schedule(name, prompt, first, last, tables[name]))
        output = runner.execute(SchedulerOutput(steps))
        assert output.failed == {}
    for name, prompt in prompts.items():
        torch.testing.assert_close(sampler.logits[name], reference_logits(tiny, prompt)[-1], rtol=0, atol=TOLERANCE)


def test_execute_fails_only_the_request_whose_numbers_break(tmp_path):
    save_tiny_model(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    weights["model.embed_tokens.weight"][2] = torch.nan
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    runner, sampler = make_runner(tmp_path)
    good, bad = make_prompt(9), [*make_prompt(4), 2, 5]
    output = runner.execute(
        SchedulerOutput([schedule("bad", bad, 0, 6, [1]), schedule("good", good, 0, 9, [2, 3])]),
    )
    assert set(output.failed) == {"bad"}
    assert set(output.token_ids) == {"good"}
    assert sampler.logits["good"].isfinite().all()


def test_bfloat16_stays_near_float32(tiny):
    prompt = make_prompt(40)
    runner, sampler = make_runner(tiny, dtype="bfloat16")
    runner.execute(SchedulerOutput([schedule("a", prompt, 0, 40, [0, 1, 2, 3, 4])]))
    expected = reference_logits(tiny, prompt)[-1]
    assert runner.dtype == torch.bfloat16
    assert sampler.logits["a"].dtype == torch.float32
    assert (sampler.logits["a"] - expected).norm() < 0.05 * expected.norm()


def test_pool_is_zeroed_after_warm_up(tiny):
    runner, _ = make_runner(tiny)
    assert not any(tensor.any() for layer in runner._cache.layers for tensor in layer.tensors)


def test_max_model_len_is_the_smaller_limit_with_a_warning(tiny):
    small, _ = make_runner(tiny, num_blocks=4)
    assert small.max_model_len == 32
    assert any("32 tokens, not the model's 512" in warning for warning in small.warnings)
    large, _ = make_runner(tiny, num_blocks=65)
    assert (large.max_model_len, large.warnings) == (MAX_POSITION, [])
    asked, _ = make_runner(tiny, num_blocks=4, max_model_len=32)
    assert (asked.max_model_len, asked.warnings) == (32, [])


@pytest.mark.parametrize(("num_blocks", "asked", "limit"), [(4, 33, "32"), (100, 513, "512")], ids=["pool", "model"])
def test_max_model_len_beyond_a_limit_is_refused(tiny, num_blocks, asked, limit):
    with pytest.raises(ConfigError, match=f"--max-model-len: got {asked}, wanted at most {limit}"):
        make_runner(tiny, num_blocks=num_blocks, max_model_len=asked)


def test_a_sliding_window_bounds_max_model_len(tmp_path):
    save_tiny_model(tmp_path, "mistral", sliding_window=64)
    runner, _ = make_runner(tmp_path)
    assert runner.max_model_len == 64
    assert any("sliding window" in warning for warning in runner.warnings)
    with pytest.raises(ConfigError, match=r"got 65, wanted at most 64 \(the model's sliding window"):
        make_runner(tmp_path, max_model_len=65)


def test_properties_describe_the_model(tiny):
    runner, _ = make_runner(tiny, num_blocks=None)
    assert runner.eos_token_ids == {2}
    assert runner.vocab_size == VOCAB_SIZE
    assert runner.kv_bytes_per_token == 2 * 3 * 2 * 16 * 4
    # what so many requests can use, far below the memory's limit
    assert runner.num_blocks == MAX_NUM_SEQS * (MAX_POSITION // 8 + 1)


def test_namespace_has_a_field_for_each_thing_that_changes_the_cache_and_no_other(tiny, tmp_path):
    base = make_runner(tiny)[0].namespace_fields()
    assert base == make_runner(tiny, num_blocks=9)[0].namespace_fields()
    rope = save_tiny_model(tmp_path / "rope", rope_parameters={"rope_type": "default", "rope_theta": 77.0})
    qwen = save_tiny_model(tmp_path / "qwen", kind="qwen2")
    weights = save_tiny_model(tmp_path / "weights", initializer_range=0.1)
    changed = {
        "dtype": make_runner(tiny, dtype="bfloat16"),
        "block_size": make_runner(tiny, block_size=16),
        "rope": make_runner(rope),
        "architecture": make_runner(qwen),
        "weights": make_runner(weights),
        "model_impl": make_runner(tiny, model_impl="transformers"),
    }
    differing = {
        what: {name for name, value in runner.namespace_fields().items() if value != base[name]}
        for what, (runner, _) in changed.items()
    }
    assert differing == {
        "dtype": {"dtype", "kv_cache_dtype"},
        "block_size": {"block_size"},
        "rope": {"rope", "weights"},  # the digest covers the config
        "architecture": {"architecture", "weights"},
        "weights": {"weights"},
        "model_impl": {"model_impl", "rope"},  # the two say it in their own words
    }
    assert base.keys() == {*differing, "kv_cache_dtype", "kv_skip_layers", "adapter"}


def test_num_threads_follow_the_caller(tiny):
    before = torch.get_num_threads()
    try:
        ModelRunner(EngineConfig(model_path=str(tiny), cache=CacheConfig(num_blocks=4)), num_threads=1)
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)
    assert 1 <= physical_cores() <= 4096


@pytest.mark.model
def test_real_model_in_chunks_gives_the_logits_of_transformers():
    folder = model_folder()
    prompt = np.random.default_rng(3).integers(17, 49_000, 700).tolist()
    expected = reference_logits(folder, prompt)
    runner, sampler = make_runner(folder, block_size=32)
    start = 0
    for size in (10, 1, 300, 33, 355, 1):
        runner.execute(SchedulerOutput([schedule("a", prompt, start, start + size, list(range(3, 30)))]))
        start += size
        torch.testing.assert_close(sampler.logits["a"], expected[start - 1], rtol=0, atol=1e-3)
    # a batch of prefix hits, decoding at several lengths
    lengths = (11, 64, 310, 699)
    steps = [schedule(str(n), prompt, n - 1, n, list(range(3, 30))) for n in lengths]
    runner.execute(SchedulerOutput(steps))
    for length in lengths:
        torch.testing.assert_close(sampler.logits[str(length)], expected[length - 1], rtol=0, atol=1e-3)
