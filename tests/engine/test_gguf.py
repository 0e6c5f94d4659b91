"""What comes out of a GGUF file: exact weights, RoPE order, config, tokenizer."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from transformers import AutoTokenizer, Qwen2Tokenizer

from engine.errors import ModelLoadError
from engine.gguf import GgufModel
from tests.engine.tiny_gguf import HEADS, HIDDEN, MERGES, SPECIAL, TOKENS, write_gguf
from tests.support.real_model import MODEL, model_folder


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf")


def test_tensors_are_the_exact_values_under_safetensors_names(path):
    raw = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    tensors = dict(GgufModel(path).tensors())
    down = raw["blk.1.ffn_down.weight"]
    expected = gguf.quants.dequantize(down.data, down.tensor_type)
    assert np.array_equal(tensors["model.layers.1.mlp.down_proj.weight"], expected)
    assert all(values.dtype == np.float32 for values in tensors.values())
    assert len(tensors) == len(raw)
    assert "model.norm.weight" in tensors


def test_query_rows_are_put_back_in_the_order_of_half_split_rope(path):
    raw = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    file_order = gguf.quants.dequantize(raw["blk.0.attn_q.weight"].data, raw["blk.0.attn_q.weight"].tensor_type)
    got = dict(GgufModel(path).tensors())["model.layers.0.self_attn.q_proj.weight"]
    head_dim = HIDDEN // HEADS
    for head in range(HEADS):
        for pair in range(head_dim // 2):
            assert np.array_equal(got[head * head_dim + pair], file_order[head * head_dim + 2 * pair])
            assert np.array_equal(
                got[head * head_dim + pair + head_dim // 2], file_order[head * head_dim + 2 * pair + 1]
            )


def test_config_is_written_with_the_shortest_numbers(path):
    config = GgufModel(path).config()
    assert config["rms_norm_eps"] == 1e-5
    assert config["rope_theta"] == 10_000.0
    assert config["tie_word_embeddings"] is True
    assert (config["num_key_value_heads"], config["head_dim"], config["eos_token_id"]) == (2, 16, 2)


def test_tokenizer_splits_digits_before_white_space_is_cut(path):
    tokenizer = GgufModel(path).tokenizer()
    assert tokenizer.encode("12").tokens == ["1", "2"], "the merge of 1 and 2 must never be reached"
    assert tokenizer.encode("\n\n1").tokens == ["ĊĊ", "1"], "white space before a digit is a piece of its own"
    assert tokenizer.encode("b a").tokens == ["b", "Ġa"]
    assert tokenizer.encode("<|im_start|>b").ids[0] == 1
    for text in ("x 12\n\n3  é🙂 a", "  ", SPECIAL[2]):
        assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text


def test_tokenizer_of_qwen_cuts_as_transformers_does(tmp_path):
    vocab = {token: index for index, token in enumerate(TOKENS)}
    expected = Qwen2Tokenizer(vocab=vocab, merges=[tuple(merge.split()) for merge in MERGES])
    tokenizer = GgufModel(write_gguf(tmp_path / "qwen.gguf", pre="qwen2", architecture="qwen2")).tokenizer()
    text = "I'LL  see 12345\n\n 3  é e\u0301 🙂!?\n a,b\tc  \r\n don't  "
    assert tokenizer.encode(text).ids == expected.encode(text)
    cut, wanted = (each.pre_tokenizer.pre_tokenize_str(text) for each in (tokenizer, expected.backend_tokenizer))
    assert cut == wanted


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"pre": "llama-bpe"}, "tokenizer.ggml.pre"), ({"architecture": "falcon"}, "architecture: got 'falcon'")],
)
def test_what_would_come_out_wrong_is_refused(changes, message, tmp_path):
    path = write_gguf(tmp_path / "other.gguf", **changes)
    with pytest.raises(ModelLoadError, match=message):
        GgufModel(path).tokenizer()


def test_a_file_that_is_no_gguf_is_refused(tmp_path):
    path = tmp_path / "text.gguf"
    path.write_bytes(b"not a model" * 100)
    with pytest.raises(ModelLoadError, match="not a readable GGUF"):
        GgufModel(path)


@pytest.mark.model
def test_real_tokenizer_loads_in_transformers_and_round_trips():
    tokenizer = AutoTokenizer.from_pretrained(model_folder())
    text = "<|im_start|>user\nIn 1969 ,  3.5 @-@ metre valves\n\n1. café 🙂<|im_end|>\n"
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert (ids[0], ids[-2], tokenizer.eos_token_id, tokenizer.pad_token_id) == (1, 2, 2, 2)
    assert tokenizer.encode("1969") == [33, 41, 38, 41]
    assert tokenizer.encode("a\n\n1") == [81, 1116, 33]
    rendered = tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False)
    assert rendered.endswith("<|im_start|>user\nhi<|im_end|>\n"), MODEL
