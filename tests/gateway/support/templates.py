"""Chat templates of several kinds, written for these tests."""

from __future__ import annotations

import json
import re
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

CHATML = """\
{% if tools %}<|im_start|>tools
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}<|im_end|>
{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}
{{ m.content }}{% for c in m.tool_calls %}
<call>{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}</call>{% endfor %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""

TRIMMING = """\
<|begin|>{% for m in messages %}<|head|>{{ m.role }}<|neck|>

{% if loop.first and tools %}{{ tools | tojson(indent=2) }}

{% endif %}{{ m.content | trim }}{% for c in m.tool_calls %}{{ c.function | tojson }}{% endfor %}<|eot|>\
{% endfor %}{% if add_generation_prompt %}<|head|>assistant<|neck|>

{% endif %}"""

LATE_SYSTEM = """\
<s>{% set ns = namespace(system='') %}{% for m in messages %}{% if m.role == 'system' %}\
{% set ns.system = m.content + '\\n\\n' %}{% elif m.role == 'user' %}{% if loop.last and tools %}[TOOLS]\
{{ tools | tojson }}[/TOOLS]{% endif %}[INST]{% if loop.last %}{{ ns.system }}{% endif %}{{ m.content }}[/INST]\
{% elif m.role == 'tool' %}[RESULT]{"content": {{ m.content | tojson }}, "id": "{{ m.tool_call_id }}"}[/RESULT]\
{% else %}{{ m.content }}{% for c in m.tool_calls %}[CALL]{{ c.function.name }}{{ c.function.arguments | tojson }}\
{% endfor %}</s>{% endif %}{% endfor %}"""

SPELLED_TOOLS = """\
{% for m in messages %}<|turn|>{{ m.role }}
{% if loop.first and tools %}{% for tool in tools %}// {{ tool.function.description }}
type {{ tool.function.name }} = (_: {
{% for key, value in tool.function.parameters.properties.items() %}  {{ key }}: {{ value.type }}, // {{ value.description }}
{% endfor %}}) => any;
{% endfor %}{% endif %}{{ m.content }}{% for c in m.tool_calls %}<function={{ c.function.name }}>\
{% for key, value in c.function.arguments.items() %}<parameter={{ key }}>
{{ value }}
</parameter>{% endfor %}</function>{% endfor %}<|stop|>
{% endfor %}{% if add_generation_prompt %}<|turn|>assistant
{% endif %}"""

THINKING = """\
{% for m in messages %}{% if m.role == 'assistant' %}<|bot|>{{ m.content.split('</think>')[-1].lstrip('\\n') }}<|eos|>\
{% else %}<|{{ m.role }}|>{{ m.content }}{% endif %}{% endfor %}\
{% if add_generation_prompt %}<|bot|><think>
{% endif %}"""

PLAIN = """\
{% for m in messages %}{{ m.role | capitalize }}: {{ m.content }}
{% endfor %}{% if add_generation_prompt %}Assistant:{% endif %}"""

BLANK_BEFORE = """\
<s>{% for m in messages %}{% if m.role == 'assistant' %} {{ m.content }}</s>{% else %}[INST] {{ m.content }} [/INST]\
{% endif %}{% endfor %}"""

TEMPLATES = {
    "chatml": CHATML,
    "trimming": TRIMMING,
    "late-system": LATE_SYSTEM,
    "spelled-tools": SPELLED_TOOLS,
    "thinking": THINKING,
    "blank-before": BLANK_BEFORE,
    "plain": PLAIN,
}

SPECIAL_TOKENS = sorted(
    {token for source in TEMPLATES.values() for token in re.findall(r"<\|\w+\|>|</?s>|\[/?[A-Z]+\]", source)}
    | {"<|system|>", "<|user|>", "<|tool|>"}
)

_CORPUS = ["the quick brown fox says hello to the lazy dog", "user assistant system tool weather in paris", "\n\n  a b"]


def write_tokenizer(
    path: Path, kind: str, *, special_tokens: list[AddedToken | str] | None = None, lossless: bool = True
) -> Path:
    """Write a tokenizer.json.

    Args:
        path: of the file.
        kind: `bytes`, `nfc` (bytes of normalized text) or a Metaspace scheme: `always`, `first` or `never`.
        special_tokens: by default all that the templates write.
        lossless: whether a Metaspace decoder keeps the first blank.
    """
    tokens = list(SPECIAL_TOKENS if special_tokens is None else special_tokens)
    if kind in ("bytes", "nfc"):
        tokenizer = Tokenizer(models.BPE())
        tokenizer.normalizer = normalizers.NFC() if kind == "nfc" else None
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
    else:
        tokenizer = Tokenizer(models.BPE(byte_fallback=True, fuse_unk=False))
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=kind, split=True)
        parts = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
        tokenizer.decoder = decoders.Sequence(parts if lossless else [*parts, decoders.Strip(" ", 1, 0)])
        alphabet = ["\u2581"]
    trainer = trainers.BpeTrainer(
        vocab_size=len(tokens) + 350, special_tokens=tokens, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(_CORPUS, trainer)
    spec = json.loads(tokenizer.to_str())
    if spec["model"]["byte_fallback"]:
        vocab = spec["model"]["vocab"]
        vocab.update({f"<0x{byte:02X}>": len(vocab) + byte for byte in range(256)})
    path.write_text(json.dumps(spec))
    return path
