"""Decode steps over the static buffers of graphs, run by a stand-in for a graph, against plain steps."""

from __future__ import annotations

import pytest
import torch

from engine.batch import SchedulerOutput
from engine.config import CacheConfig, EngineConfig, SchedulerConfig
from engine.graphs import bucket_sizes, run_again
from engine.model_runner import ModelRunner
from tests.engine.test_model_runner import RecordingSampler, make_prompt, schedule
from tests.engine.tiny_model import save_tiny_model

LENGTHS = (5, 8, 9, 40, 17, 64, 30)
BLOCKS_EACH = 9


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return save_tiny_model(tmp_path_factory.mktemp("tiny"))


def make_runner(folder, *, capture=None, kind="auto", skip="none", impl="auto", num_blocks=64):
    sampler = RecordingSampler()
    config = EngineConfig(
        model_path=str(folder),
        model_impl=impl,
        dtype="float32",
        device="cpu",
        cache=CacheConfig(block_size=8, num_blocks=num_blocks, kv_cache_dtype=kind, kv_skip_layers=skip),
        scheduler=SchedulerConfig(max_num_seqs=12),
    )
    return ModelRunner(config, sampler=sampler, capture=capture), sampler


def decode_all(runner, sampler, lengths=LENGTHS, num_steps=3):
    """Prefill each prompt, then decode all side by side; return the logits of each decode step by request."""
    prompts = {str(n): make_prompt(n + num_steps, n) for n in lengths}
    tables = {name: list(range(BLOCKS_EACH * i, BLOCKS_EACH * (i + 1))) for i, name in enumerate(prompts)}
    for name, prompt in prompts.items():
        runner.execute(SchedulerOutput([schedule(name, prompt, 0, int(name), tables[name], sample=False)]))
    logits = []
    for step in range(num_steps):
        parts = [schedule(n, p, int(n) + step, int(n) + step + 1, tables[n]) for n, p in prompts.items()]
        output = runner.execute(SchedulerOutput(parts))
        assert set(output.token_ids) == set(prompts)
        logits.append(sampler.logits)
    return logits


def counting(counts):
    """A stand-in that notes how often each graph is replayed."""

    def capture(step):
        run = run_again(step)

        def replay():
            counts.append(1)
            return run()

        return replay

    return capture


@pytest.mark.parametrize(
    "options",
    [{}, {"kind": "int8/hadamard"}, {"kind": "int8/per_token", "skip": "first:1"}, {"impl": "transformers"}],
    ids=["plain", "hadamard", "two-formats", "transformers"],
)
def test_a_replayed_step_gives_the_logits_of_a_plain_one(tiny, options):
    replays = []
    plain = decode_all(*make_runner(tiny, **options))
    replayed = decode_all(*make_runner(tiny, capture=counting(replays), **options))
    assert len(replays) == 3
    for expected, got in zip(plain, replayed, strict=True):
        for name, logits in expected.items():
            torch.testing.assert_close(got[name], logits, rtol=0, atol=2e-5)


def test_only_steps_of_decode_rows_are_replayed(tiny):
    replays = []
    runner, _ = make_runner(tiny, capture=counting(replays))
    prompt = make_prompt(30)
    decode = schedule("a", prompt, 20, 21, [0, 1, 2, 3])
    runner.execute(SchedulerOutput([schedule("a", prompt, 0, 20, [0, 1, 2, 3])]))
    runner.execute(SchedulerOutput([decode, schedule("b", prompt, 0, 7, [4, 5])]))
    runner.execute(SchedulerOutput([schedule("a", prompt, 20, 21, [0, 1, 2, 3], sample=False)]))
    assert replays == []
    runner.execute(SchedulerOutput([decode]))
    assert replays == [1]


def test_padding_writes_to_its_own_block_alone(tiny):
    runner, _ = make_runner(tiny, capture=run_again, num_blocks=20)
    assert runner.num_blocks == 20
    assert runner._cache.num_blocks == 21
    for layer in runner._cache.layers:
        assert not layer.key[:20].any()
        layer.key.fill_(7.0)
    prompt = make_prompt(4)
    runner.execute(SchedulerOutput([schedule(str(i), prompt, 3, 4, [i]) for i in range(3)]))  # in a bucket of 4
    for layer in runner._cache.layers:
        written = (layer.key != 7.0).any(dim=-1).any(dim=1).nonzero().tolist()
        assert written == [[0, 3], [1, 3], [2, 3], [20, 0]]


def test_a_bad_row_fails_its_request_alone(tiny):
    runner, _ = make_runner(tiny, capture=run_again)
    prompt = make_prompt(9)
    runner._model._embedding[2] = torch.nan
    bad = [*prompt[:8], 2]
    parts = [schedule("good", prompt, 8, 9, [0, 1]), schedule("bad", bad, 8, 9, [2, 3])]
    output = runner.execute(SchedulerOutput(parts))
    assert (set(output.token_ids), set(output.failed)) == ({"good"}, {"bad"})
    assert runner.execute(SchedulerOutput(parts[:1])).failed == {}


def test_a_model_that_cannot_be_captured_runs_without_graphs(tiny):
    def capture(step):
        raise RuntimeError("operation not permitted when stream is capturing\nmore")

    runner, sampler = make_runner(tiny, capture=capture)
    assert any("without CUDA graphs" in warning and "more" not in warning for warning in runner.warnings)
    decode_all(runner, sampler, num_steps=1)


def test_buckets_are_few_and_hold_every_batch():
    assert bucket_sizes(1) == [1]
    assert bucket_sizes(3) == [1, 2, 3]
    assert bucket_sizes(8) == [1, 2, 4, 8]
    assert bucket_sizes(30) == [1, 2, 4, 8, 16, 24, 30]
