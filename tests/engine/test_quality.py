"""The quality report's arithmetic on known inputs, and the command end to end on tiny models."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from engine.commands.quality import main
from engine.kv_layout import KVLayout
from engine.loader import load_model
from engine.model_config import ModelConfig
from engine.quality import answers
from engine.quality.answers import Answers, compare, repetition, rouge_l
from engine.quality.divergence import Divergence
from engine.quality.gates import gates_for
from engine.quality.schemes import EMULATIONS, parse_scheme
from engine.quality.session import Session
from tests.engine.tiny_model import VOCAB_SIZE, reference_logits, save_tiny_model

CPU = torch.device("cpu")


def session(folder: Path, kind: str = "auto", **changes) -> Session:
    config = ModelConfig.from_folder(folder)
    model = load_model(folder, config, dtype=torch.float32, device=CPU, max_position=config.max_position)
    layout = KVLayout(config.num_layers, config.num_kv_heads, config.head_dim, kind, block_size=8, itemsize=4)
    return Session(model, layout, torch.float32, CPU, **{"backend": "torch", "chunk": 16, **changes})


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("tiny"), head_dim=32)


def test_session_scores_as_transformers(tiny):
    tokens = [(7 * i) % VOCAB_SIZE for i in range(70)]
    got = torch.cat(list(session(tiny).score(tokens)))
    torch.testing.assert_close(got, reference_logits(tiny, tokens), rtol=0, atol=1e-4)


@pytest.mark.parametrize("kind", ["auto", "int8/per_token", "int8/per_channel"])
def test_session_continues_each_prompt_as_alone(kind, tiny):
    prompts = [[5, 9, 11], [(3 * i) % VOCAB_SIZE for i in range(40)], [8] * 17]
    together = torch.stack(list(session(tiny, kind).continue_greedily(prompts, 6)), dim=1)
    for prompt, logits in zip(prompts, together, strict=True):
        alone = torch.cat(list(session(tiny, kind).continue_greedily([prompt], 6)))
        assert torch.equal(alone.argmax(-1), logits.argmax(-1))


@pytest.mark.parametrize("kind", ["int8/per_token", "int8/per_channel"])
def test_session_scores_int8_near_the_unquantized_cache(kind, tiny):
    tokens = [(11 * i) % VOCAB_SIZE for i in range(100)]
    plain, quantized = (torch.cat(list(session(tiny, k).score(tokens))) for k in ("auto", kind))
    assert 0 < (plain - quantized).norm() < 0.05 * plain.norm()


def test_emulated_int8_is_what_the_kernels_store(tiny):
    from kernels.quant import dequantize, quantize

    tokens = [(11 * i) % VOCAB_SIZE for i in range(100)]
    emulated = session(tiny, emulation=lambda x: dequantize(*quantize(x)))
    got, expected = (torch.cat(list(s.score(tokens))) for s in (emulated, session(tiny, "int8/per_token")))
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("name", "error"),
    [("fp8_e4m3", 2**-4), ("int8/one_scale", 1 / 254 * 4), ("int4/per_token", 1 / 14), ("int4/hadamard", 0.3)],
)
def test_emulations_err_by_their_step_and_no_less(name, error):
    x = torch.randn(50, 3, 64, generator=torch.Generator().manual_seed(0))
    worst = (EMULATIONS[name](x) - x).abs().amax() / x.abs().amax()
    assert error / 50 < worst <= error * 1.001


def test_divergence_of_known_distributions():
    base = torch.tensor([[0.5, 0.25, 0.25], [0.1, 0.2, 0.7], [0.2, 0.2, 0.6]]).log()
    other = torch.tensor([[0.25, 0.5, 0.25], [0.1, 0.2, 0.7], [0.2, 0.2, 0.6]]).log() + 3.0  # logits have no zero
    divergence = Divergence()
    divergence.add(base, other, [0, 2], position=0)
    row = divergence.report()
    assert row["ppl"] == pytest.approx(math.sqrt(1 / (0.25 * 0.7)), rel=1e-6)
    assert row["ppl_delta_ratio"] == pytest.approx(math.sqrt(2) - 1, rel=1e-5)
    assert row["kl_max"] == pytest.approx(0.5 * math.log(2) - 0.25 * math.log(2), rel=1e-5)
    assert row["kl_mean"] == pytest.approx(row["kl_max"] / 3, rel=1e-5)
    assert row["top1_agreement"] == pytest.approx(2 / 3)
    assert row["rms_delta_p"] == pytest.approx(0.25 / math.sqrt(2), rel=1e-5)


def test_divergence_from_itself_is_nothing():
    logits = torch.randn(100, 50, generator=torch.Generator().manual_seed(1))
    divergence = Divergence()
    divergence.add(logits.log_softmax(-1), logits, [3] * 99, position=0)
    row = divergence.report()
    assert row["kl_max"] < 1e-6
    assert row["top1_agreement"] == row["same_draw_t1.0"] == row["same_draw_t0.2"] == 1.0
    assert abs(row["ppl_delta_ratio"]) < 1e-6


def test_rouge_l_is_the_f1_of_the_longest_common_subsequence():
    assert rouge_l([1, 2, 3, 4], [1, 2, 3, 4]) == 1.0
    assert rouge_l([1, 2, 3, 4], [9, 1, 3, 8]) == pytest.approx(0.5)
    assert rouge_l([1, 2], [3, 4]) == 0.0


def test_repetition_grows_where_an_answer_loops():
    loops = [*range(20), *([7, 8, 9, 10] * 5)]
    first, *_, last = repetition([loops])
    assert first == 0.0
    assert last > 0.9


def test_answers_part_where_a_token_differs_and_the_margin_is_the_baselines():
    candidates = torch.tensor([[[5, 6], [7, 8], [9, 1]]])
    logits = torch.tensor([[[3.0, 1.0], [2.0, 1.25], [4.0, 0.0]]])
    base = Answers(candidates[:, :, 0], candidates, logits)
    other = Answers(torch.tensor([[5, 8, 2]]), candidates, logits)
    row = compare(base, other)
    assert row["divergences"] == [{"question": 0, "index": 1, "margin": 0.75}]
    assert (row["num_identical"], row["first_divergence_median"], row["margin_max"]) == (0, 1, 0.75)
    same = compare(base, base)
    assert (same["rouge_l"], same["num_identical"], same["margin_max"]) == (1.0, 1, 0.0)


def test_questions_are_forty_and_differ():
    lines = answers.QUESTIONS.read_text(encoding="utf-8").splitlines()
    assert len(lines) == len(set(lines)) == 40


def test_gates_are_looser_for_small_models_but_not_for_the_perplexity_of_the_defaults():
    large, small = (gates_for("int8/per_group_64", num_parameters=n, window=2048) for n in (8 * 10**9, 10**8))
    assert (large.ppl_delta_ratio, large.kl_mean, large.top1_loss) == (0.001, 0.002, 0.015)
    assert small.kl_mean == 3 * large.kl_mean
    default = gates_for("int8/hadamard@last:4", num_parameters=10**8, window=2048)
    assert default == dataclasses.replace(small, ppl_delta_ratio=0.0015)
    assert gates_for("int8/hadamard", num_parameters=8 * 10**9, window=8192).kl_mean == 0.01
    weights = gates_for("w8a8:int8/hadamard", num_parameters=10**8, window=2048)
    assert (weights.ppl_delta_ratio, weights.kl_mean) == (0.006, 2 * small.kl_mean)


def test_rows_with_int8_weights_take_any_cache():
    assert parse_scheme("w8a8") == dataclasses.replace(parse_scheme("auto"), name="w8a8", int8_weights=True)
    row = parse_scheme("w8a8:int8/per_token@first:1")
    assert (row.kv_cache_dtype, row.kv_skip_layers, row.int8_weights) == ("int8/per_token", "first:1", True)


def test_gates_name_what_is_breached_and_judge_nothing_unmeasured():
    gates = gates_for("int8/per_token", num_parameters=8 * 10**9, window=2048)
    fine = {"ppl_delta_ratio": 0.0005, "kl_mean": 0.001, "kl_p999": 0.01, "top1_agreement": 0.99}
    assert gates.breaches(fine, {}) == []
    bad = fine | {"kl_mean": 0.1, "needles": {"all": 0.5}}
    assert gates.breaches(bad, {"needles": {"all": 1.0}}) == [
        "kl_mean: 0.1, at most 0.002",
        "needle_loss: 0.5, at most 0.02",
    ]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("int9", "wanted one of auto"),
        ("w8a8:int9", "wanted one of auto"),
        ("w8a8+int8/per_token", "wanted one of auto"),
        ("int8/per_token@middle", "kv_skip_layers"),
        ("fp8_e4m3@last:1", "no layers to skip"),
    ],
)
def test_unknown_rows_are_refused(name, message):
    with pytest.raises(ValueError, match=message):
        parse_scheme(name)


def with_tokenizer(folder: Path) -> Path:
    """Words are numbers below the vocabulary's size."""
    words = {str(number): number for number in range(VOCAB_SIZE)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder)
    return folder


def run_quality(folder: Path, tmp_path: Path, *arguments: str) -> tuple[int, dict]:
    text = tmp_path / "text.txt"
    text.write_text(" ".join(str((i * i + 7 * i) % VOCAB_SIZE) for i in range(600)))
    options = ["--tokens", "256", "--window", "128", "--chunk", "64", "--block-size", "8", "--backend", "torch"]
    files = ["--json-file", str(tmp_path / "q.json"), "--html-file", str(tmp_path / "q.html")]
    status = main([str(folder), "--text", str(text), *options, *files, *arguments])
    return status, json.loads((tmp_path / "q.json").read_text())


def test_command_reports_every_row(tmp_path, capsys):
    folder = with_tokenizer(save_tiny_model(tmp_path / "model", head_dim=32, initializer_range=0.1))
    behaviour = ["--questions", "2", "--answer-tokens", "8", "--needles", "1", "--needle-tokens", "100"]
    formats = "int8/hadamard,int8/per_token,int8/per_token@last:1,fp8_e4m3,int4/per_token"
    status, report = run_quality(folder, tmp_path, "--formats", formats, "--multi-head", *behaviour)
    assert status == 0
    assert list(report["formats"]) == formats.split(",")
    assert report["gates"].keys() == {"int8/hadamard", "int8/per_token", "int8/per_token@last:1"}
    for row in report["formats"].values():
        assert row.keys() == report["noise_floor"].keys()
        assert {
            "ppl",
            "ppl_delta_ratio",
            "kl_mean",
            "kl_p999",
            "kl_max",
            "top1_agreement",
            "rouge_l",
            "needles",
        } <= row.keys()
    kls = {name: row["kl_mean"] for name, row in report["formats"].items()}
    assert report["noise_floor"]["kl_mean"] < 1e-7 < kls["int8/per_token@last:1"] < kls["int8/per_token"]
    assert kls["int8/per_token"] < kls["fp8_e4m3"] < kls["int4/per_token"]
    # a KV head and its copies are quantized alike
    assert report["multi_head"]["int8/per_token"]["kl_mean"] == pytest.approx(kls["int8/per_token"], rel=0.2)
    assert len(report["key_outliers"]) == 3
    assert "int8/hadamard" in capsys.readouterr().out
    page = (tmp_path / "q.html").read_text()
    assert page.count("<svg") >= 5
    assert "http" not in page


def test_command_fails_a_model_with_key_bias_and_passes_it_with_auto(tmp_path):
    from tests.engine.test_quantized_cache import add_key_bias

    folder = with_tokenizer(
        add_key_bias(save_tiny_model(tmp_path / "model", "qwen2", head_dim=64, initializer_range=0.1))
    )
    status, report = run_quality(
        folder, tmp_path, "--formats", "int8/per_token,int8/per_token@auto", "--questions", "0", "--needles", "0"
    )
    assert status == 1
    assert any("kl_mean" in breach for breach in report["gates"]["int8/per_token"])
    assert report["gates"]["int8/per_token@auto"] == []


def test_command_says_what_is_wrong(tmp_path, capsys):
    text = tmp_path / "text.txt"
    text.write_text("1 2 3")
    folder = with_tokenizer(save_tiny_model(tmp_path / "model"))
    for arguments, message in (
        ([str(folder), "--text", str(tmp_path / "none")], "none"),
        ([str(folder), "--text", str(text)], "got 3 tokens"),
        ([str(folder), "--text", str(text), "--formats", "int7"], "int7"),
        (["./nowhere", "--text", str(text)], "nowhere"),
    ):
        assert main(arguments) == 2
        assert message in capsys.readouterr().err
