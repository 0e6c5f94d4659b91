"""`prefixgate plan`: the account of shapes and models, and that the worker allocates what it says."""

from __future__ import annotations

import json

import pytest

from engine.commands.plan import main, parse_memory
from engine.config import CacheConfig, EngineConfig, SchedulerConfig
from engine.memory_plan import num_parameters
from engine.model_config import ModelConfig
from engine.model_runner import ModelRunner
from tests.engine.tiny_model import save_tiny_model

GIB = 2**30
SHAPE = ["--layers", "32", "--kv-heads", "8", "--head-dim", "128"]
CHATS = ["--concurrency", "100", "--context", "2048"]


def plan(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict:
    assert main([*arguments, "--json"]) == 0
    report: dict = json.loads(capsys.readouterr().out)
    return report


@pytest.mark.parametrize(
    ("arguments", "gib"),
    [
        ([*SHAPE, *CHATS], 25.0),
        ([*SHAPE, *CHATS, "--kv-cache-dtype", "int8/per_group_128", "--kv-skip-layers", "last:4"], 14.2),
        (["--layers", "32", "--kv-heads", "32", "--head-dim", "128", *CHATS], 100.0),
        # the first 1,024 tokens of all chats are held once
        ([*SHAPE, *CHATS, "--shared-tokens", "1024"], 12.6),
        # a chat has whole blocks
        ([*SHAPE, "--concurrency", "100", "--context", "2017"], 25.0),
    ],
    ids=["16-bit", "int8-last-4-in-16-bit", "multi-head", "shared", "blocks"],
)
def test_plan_of_a_shape_gives_the_known_totals(arguments, gib, capsys):
    report = plan(capsys, *arguments)
    assert round(report["kv_bytes_total"] / GIB, 1) == gib
    assert report["fits"] is None
    assert report["max_concurrency"] is None


def test_plan_of_a_shape_gives_the_memory_to_the_cache_alone(capsys):
    exact = plan(capsys, *SHAPE, *CHATS, "--memory", "25GiB")
    assert (exact["fits"], exact["max_concurrency"], exact["max_context_tokens"]) == (True, 100, 2048)
    assert exact["average_concurrency"] == 200
    less = plan(capsys, *SHAPE, *CHATS, "--memory", "24.9")
    assert (less["fits"], less["max_concurrency"]) == (False, 99)
    assert any("at most 99 chats" in advice for advice in less["advice"])
    none = plan(capsys, *SHAPE, *CHATS, "--memory", "1MiB")
    assert (none["fits"], none["max_concurrency"], none["max_context_tokens"]) == (False, 0, 0)


def test_plan_for_people_prints_the_formula_and_the_verdict(capsys):
    assert main([*SHAPE, *CHATS, "--memory", "24GB", "--kv-cache-dtype", "int8/per_token"]) == 0
    text = capsys.readouterr().out
    assert "32 layers x 8 KV heads x (4 bytes of scales + 2 (K, V) x 128 codes) = 66,560 bytes a token" in text
    assert "fits         yes" in text
    assert "not known before a start" in text


SERVICE = [*SHAPE, "--context", "2048", "--shared-tokens", "1024", "--weights", "14GB", "--memory", "24GiB"]


def test_comparison_of_the_articles_service_shows_what_each_step_brings(capsys):
    variants = plan(capsys, *SERVICE, "--concurrency", "100", "--compare")["variants"]
    assert [variant["name"] for variant in variants] == [
        "16-bit contiguous",
        "16-bit paged",
        "+ shared prefix",
        "+ int8/hadamard",
    ]
    assert [round(variant["kv_bytes_total"] / GIB, 1) for variant in variants] == [25.0, 25.0, 12.6, 6.4]
    assert [round(variant["kv_bytes_average"] / GIB, 1) for variant in variants] == [25.0, 18.8, 6.4, 3.2]
    assert [variant["fits"] for variant in variants] == [False, False, False, True]
    assert [variant["fits_on_average"] for variant in variants] == [False, False, True, True]
    assert [variant["max_concurrency"] for variant in variants] == [37, 37, 73, 146]


def test_what_does_not_fit_is_told_with_what_would(capsys):
    options = [*SERVICE, "--concurrency", "400", "--kv-cache-dtype", "int8/hadamard", "--kv-skip-layers", "none"]
    report = plan(capsys, *options)
    assert report["fits"] is False
    assert "all 400 chats need 40.9 GiB" in report["advice"]
    assert "with weights of half the bytes 249 chats fit" in report["advice"]
    enough = [*options[:-6], "--concurrency", "400", *options[-4:], "--memory", "41GiB"]
    assert plan(capsys, *enough)["fits"] is True
    assert plan(capsys, *enough, "--memory", "40.8GiB")["fits"] is False


def test_comparison_for_people_has_a_line_for_each_cache(capsys):
    assert main([*SERVICE, "--concurrency", "100", "--compare"]) == 0
    lines = capsys.readouterr().out.splitlines()[-4:]
    assert [line.split("  ")[-1] for line in lines] == ["does not fit", "does not fit", "fits on average", "fits"]
    assert main([*SHAPE, *CHATS, "--compare"]) == 0  # no memory was said: sizes alone
    assert capsys.readouterr().out.splitlines()[-1].split() == [
        "+",
        "int8/hadamard",
        "12.7",
        "GiB",
        "6.3",
        "GiB",
        "12.7",
        "GiB",
    ]


def test_plan_of_a_model_accounts_for_its_weights(tmp_path, capsys):
    folder = save_tiny_model(tmp_path, "qwen2")
    report = plan(capsys, str(folder), "--memory", "2GiB", "--dtype", "float32", "--concurrency", "3")
    stored = (folder / "model.safetensors").stat().st_size
    assert report["weights_bytes"] == pytest.approx(stored, rel=0.05)  # the file has a header
    taken = sum(report[f"{name}_bytes"] for name in ("weights", "activations", "overhead", "reserve", "kv_budget"))
    assert taken == report["memory_bytes"] == 2 * GIB
    assert report["context_tokens"] == 512


@pytest.mark.parametrize("kind", ["auto", "int8/hadamard", "int8/per_group_32", "int8/per_channel"])
@pytest.mark.parametrize("max_model_len", [64, 512], ids=["len64", "len512"])
def test_worker_allocates_what_the_plan_says_whatever_the_longest_request(kind, max_model_len, tmp_path, capsys):
    folder = save_tiny_model(tmp_path, head_dim=64)
    options = ["--kv-cache-dtype", kind, "--kv-skip-layers", "first:1", "--dtype", "bfloat16"]
    report = plan(capsys, str(folder), *options, "--concurrency", "20", "--context", "160")
    cache = CacheConfig(num_blocks=20 * 160 // 32, kv_cache_dtype=kind, kv_skip_layers="first:1")
    config = EngineConfig(
        model_path=str(folder),
        dtype="bfloat16",
        device="cpu",
        max_model_len=max_model_len,
        cache=cache,
        scheduler=SchedulerConfig(max_num_seqs=20),
    )
    runner = ModelRunner(config)
    assert runner._cache.num_bytes == pytest.approx(report["kv_bytes_total"], rel=0.03)
    assert runner.kv_bytes_per_token == report["kv_bytes_per_token"]


@pytest.mark.parametrize(
    "kind", [("llama", {}), ("llama", {"tie_word_embeddings": True}), ("qwen2", {}), ("qwen3", {})], ids=str
)
def test_number_of_parameters_is_transformers(kind, tmp_path):
    from transformers import AutoModelForCausalLM

    folder = save_tiny_model(tmp_path, kind[0], **kind[1])
    expected = sum(parameter.numel() for parameter in AutoModelForCausalLM.from_pretrained(folder).parameters())
    assert num_parameters(ModelConfig.from_folder(folder)) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [("24GiB", 24 * GIB), ("24g", 24 * GIB), ("24", 24 * GIB), ("24GB", 24 * 10**9), ("1.5 MiB", 1_572_864),
     ("8589934592", 8 * GIB), ("500b", 500)],
)  # fmt: skip
def test_memory_is_read(text, expected):
    assert parse_memory(text) == expected


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--layers", "2", "--kv-heads", "2"],
        ["model", *SHAPE],
        ["model", "--weights", "14GB"],
        [*SHAPE, "--memory", "lots"],
        [*SHAPE, "--memory", "3XB"],
        [*SHAPE, "--memory", "0"],
        [*SHAPE, "--concurrency", "0"],
        [*SHAPE, "--kv-cache-dtype", "int8"],
    ],
)
def test_bad_arguments_exit_with_2(arguments):
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([*SHAPE, "--kv-skip-layers", "33", "--kv-cache-dtype", "int8/per_token"], "the model has 32 layers"),
        ([*SHAPE, "--shared-tokens", "3000", "--context", "2048"], "wanted at most the context"),
        (["--layers", "2", "--kv-heads", "2", "--head-dim", "80", "--kv-cache-dtype", "int8/per_group_32"], "80"),
    ],
)
def test_numbers_that_do_not_fit_together_are_said(arguments, message, capsys):
    assert main(arguments) == 2
    assert message in capsys.readouterr().err


def test_unknown_model_is_said(capsys):
    assert main(["./nowhere-at-all"]) == 1
    assert "nowhere-at-all" in capsys.readouterr().err
