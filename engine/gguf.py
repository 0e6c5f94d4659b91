"""Reads a GGUF file of the Llama family: its weights in float32, and the files a safetensors folder has beside them.

Weights come out exactly as the file holds them. The tokenizer is built from the file's vocabulary and merges; which
pre-tokenizer goes with them is looked up by the name the file gives. Knows no folder layout and no network. Loads no
torch.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from engine.errors import ModelLoadError

_CONTROL, _USER_DEFINED = 3, 4  # token types that are matched before the merges run

_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_TOP_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}


class GgufModel:
    """An open GGUF file."""

    def __init__(self, path: Path) -> None:
        try:
            self._reader = gguf.GGUFReader(path)
        except (OSError, ValueError, KeyError, IndexError) as error:
            raise ModelLoadError(f"{path.name}: not a readable GGUF file ({error})") from error
        architecture = self._field("general.architecture")
        if architecture != "llama":
            raise ModelLoadError(f"{path.name}: architecture: got {architecture!r}, wanted 'llama'")

    @property
    def num_tensors(self) -> int:
        """Tensors in the file."""
        return len(self._reader.tensors)

    @property
    def num_values(self) -> int:
        """Weights in the file."""
        return sum(int(tensor.n_elements) for tensor in self._reader.tensors)

    @property
    def chat_template(self) -> str | None:
        """The chat template, if the file has one."""
        template = self._field("tokenizer.chat_template", None)
        return None if template is None else str(template)

    def tensors(self) -> Iterator[tuple[str, npt.NDArray[np.float32]]]:
        """Yield (name, [rows, columns] or [columns]) under the names of a safetensors folder, in float32."""
        heads = {
            "attn_q": int(self._field("llama.attention.head_count")),
            "attn_k": int(self._field("llama.attention.head_count_kv")),
        }
        for tensor in self._reader.tensors:
            values = np.asarray(gguf.quants.dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
            values = values.reshape(tuple(int(size) for size in reversed(tensor.shape)))
            part = str(tensor.name).split(".")[-2]
            if part in heads:
                values = _halves(values, heads[part])
            yield _safetensors_name(str(tensor.name)), np.ascontiguousarray(values)

    def config(self) -> dict[str, Any]:
        """Return the contents of config.json."""
        num_heads = int(self._field("llama.attention.head_count"))
        hidden_size = int(self._field("llama.embedding_length"))
        names = {str(tensor.name) for tensor in self._reader.tensors}
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "attention_bias": False,
            "mlp_bias": False,
            "hidden_act": "silu",
            "hidden_size": hidden_size,
            "head_dim": int(self._field("llama.rope.dimension_count", hidden_size // num_heads)),
            "intermediate_size": int(self._field("llama.feed_forward_length")),
            "max_position_embeddings": int(self._field("llama.context_length")),
            "num_attention_heads": num_heads,
            "num_hidden_layers": int(self._field("llama.block_count")),
            "num_key_value_heads": int(self._field("llama.attention.head_count_kv")),
            "rms_norm_eps": _shortest(self._field("llama.attention.layer_norm_rms_epsilon")),
            "rope_theta": _shortest(self._field("llama.rope.freq_base", 10_000.0)),
            "tie_word_embeddings": "output.weight" not in names,
            "torch_dtype": "float32",
            "vocab_size": len(self._field("tokenizer.ggml.tokens")),
            **self._special_ids(),
        }

    def generation_config(self) -> dict[str, Any]:
        """Return the contents of generation_config.json."""
        return self._special_ids()

    def tokenizer(self) -> Tokenizer:
        """Build the tokenizer: byte-level BPE with the pre-tokenizer that `tokenizer.ggml.pre` names."""
        if (kind := self._field("tokenizer.ggml.model")) != "gpt2":
            raise ModelLoadError(f"tokenizer.ggml.model: got {kind!r}, wanted 'gpt2' (byte-level BPE)")
        tokens = [str(token) for token in self._field("tokenizer.ggml.tokens")]
        merges = [_pair(str(merge)) for merge in self._field("tokenizer.ggml.merges")]
        vocab = {token: token_id for token_id, token in enumerate(tokens)}
        tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
        tokenizer.pre_tokenizer = _pre_tokenizer(str(self._field("tokenizer.ggml.pre", "default")))
        tokenizer.decoder = decoders.ByteLevel()
        types = [int(kind) for kind in self._field("tokenizer.ggml.token_type")]
        for token, kind in zip(tokens, types, strict=True):
            if kind in (_CONTROL, _USER_DEFINED):
                added = AddedToken(token, special=kind == _CONTROL, normalized=False)
                (tokenizer.add_special_tokens if kind == _CONTROL else tokenizer.add_tokens)([added])
        return tokenizer

    def tokenizer_config(self) -> dict[str, Any]:
        """Return the contents of tokenizer_config.json."""
        tokens = self._field("tokenizer.ggml.tokens")
        names = {"bos": "bos", "eos": "eos", "unknown": "unk", "padding": "pad"}
        ids = {short: self._field(f"tokenizer.ggml.{name}_token_id", None) for name, short in names.items()}
        return {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": int(self._field("llama.context_length")),
            "add_prefix_space": bool(self._field("tokenizer.ggml.add_space_prefix", False)),
            "clean_up_tokenization_spaces": False,
            **{f"{short}_token": str(tokens[int(value)]) for short, value in ids.items() if value is not None},
        }

    def _special_ids(self) -> dict[str, int]:
        names = {"bos": "bos", "eos": "eos", "padding": "pad"}
        ids = {short: self._field(f"tokenizer.ggml.{name}_token_id", None) for name, short in names.items()}
        return {f"{short}_token_id": int(value) for short, value in ids.items() if value is not None}

    def _field(self, name: str, *default: Any) -> Any:
        field = self._reader.get_field(name)
        if field is not None:
            return field.contents()
        if default:
            return default[0]
        raise ModelLoadError(f"GGUF field {name!r} is missing")


def _safetensors_name(name: str) -> str:
    """`blk.3.attn_q.weight` -> `model.layers.3.self_attn.q_proj.weight`."""
    if name in _TOP_NAMES:
        return _TOP_NAMES[name]
    prefix, _, rest = name.partition(".")
    layer, _, rest = rest.partition(".")
    part, _, kind = rest.partition(".")
    if prefix != "blk" or part not in _LAYER_NAMES:
        raise ModelLoadError(f"GGUF tensor {name!r} has no place in a Llama model")
    return f"model.layers.{layer}.{_LAYER_NAMES[part]}.{kind}"


def _halves(weight: npt.NDArray[np.float32], num_heads: int) -> npt.NDArray[np.float32]:
    """Undo the file's order of q and k rows: RoPE pairs are neighbours there, half a head apart here.

    Source: `permute` in llama.cpp's convert_hf_to_gguf.py, inverted.
    """
    pairs = weight.reshape(num_heads, -1, 2, *weight.shape[1:])
    return pairs.swapaxes(1, 2).reshape(weight.shape)


def _pre_tokenizer(name: str) -> pre_tokenizers.PreTokenizer:
    """Every digit by itself first, then GPT-2's pattern.

    It matters beyond digits: white space before a number is its own piece, so that runs of it merge.
    Source: LLAMA_VOCAB_PRE_TYPE_SMOLLM in llama.cpp's llama-vocab.cpp.
    """
    if name != "smollm":
        raise ModelLoadError(f"tokenizer.ggml.pre: got {name!r}, wanted 'smollm'")
    return pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )


def _pair(merge: str) -> tuple[str, str]:
    """`Ġ t` -> (`Ġ`, `t`)."""
    left, _, right = merge.partition(" ")
    return left, right


def _shortest(value: Any) -> float:
    """Return the float32 `value` with the fewest digits that name it: 1e-05, not 9.999999747378752e-06."""
    return float(str(np.float32(value)))
