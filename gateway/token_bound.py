"""How many characters one token can stand for at most, so that a text that cannot fit is refused before it is tokenized.

Knows the form of tokenizer.json only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_NFC_CHARS = 4
"""Most characters that compose into one. Source: Unicode Standard Annex 15, table of maximum expansion factors."""
_PRINTABLE = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))
_NUM_ASCII = 0x80
_CONTINUATIONS = range(0x80, 0xC0)


@dataclass(frozen=True, slots=True)
class TokenBound:
    """What is certain of any text."""

    max_chars: int
    """No token stands for more characters."""
    dropped: str = ""
    """Characters that become no token, for the vocabulary has none for them."""

    def num_chars(self, text: str) -> int:
        """Count the characters that need tokens."""
        return len(text) - sum(map(text.count, self.dropped))


def token_bound(spec: Mapping[str, Any]) -> TokenBound | None:
    """Find the most characters of a text that become one token.

    Args:
        spec: a tokenizer.json.

    Returns: None where a token may stand for text of any length.
    """
    model, added = spec["model"], spec.get("added_tokens") or ()
    if model.get("type") != "BPE" or any(token.get("lstrip") or token.get("rstrip") for token in added):
        return None
    shrink, cut = _shrink(spec.get("normalizer")), spec.get("pre_tokenizer")
    dropped = _dropped(cut, model)
    if not shrink or not _keeps_all(cut) or dropped is None:
        return None
    # A byte-level vocabulary writes a byte as one character, and a character has at least one byte.
    longest = max(map(len, [*model["vocab"], *(token["content"] for token in added)]))
    return TokenBound(shrink * longest, dropped)


def _shrink(normalizer: Mapping[str, Any] | None) -> int:
    """Give the most characters that it makes one of; 0: no bound is known."""
    if normalizer is None or normalizer["type"] == "Prepend":
        return 1
    if normalizer["type"] == "NFC":
        return _NFC_CHARS
    if normalizer["type"] == "Replace":
        replaced = normalizer["pattern"].get("String", "")
        return 1 if 0 < len(replaced) <= len(normalizer["content"]) else 0
    if normalizer["type"] == "Sequence":
        product = 1
        for entry in normalizer["normalizers"]:
            product *= _shrink(entry)
        return product
    return 0


def _keeps_all(pre_tokenizer: Mapping[str, Any] | None) -> bool:
    """Whether it only cuts the text, and drops nothing."""
    if pre_tokenizer is None or pre_tokenizer["type"] in ("ByteLevel", "Digits", "Metaspace"):
        return True
    if pre_tokenizer["type"] == "Sequence":
        return all(map(_keeps_all, pre_tokenizer["pretokenizers"]))
    return bool(pre_tokenizer["type"] == "Split" and pre_tokenizer["behavior"] != "Removed")


def _dropped(pre_tokenizer: Mapping[str, Any] | None, model: Mapping[str, Any]) -> str | None:
    """Find the characters of which the vocabulary has no byte; None: that cannot be told."""
    parts = (pre_tokenizer or {}).get("pretokenizers", [pre_tokenizer])
    if any(part and part["type"] == "ByteLevel" for part in parts):
        missing = [byte for byte, char in byte_chars().items() if char not in model["vocab"]]
    elif model.get("byte_fallback"):
        missing = [byte for byte in range(256) if f"<0x{byte:02X}>" not in model["vocab"]]
        if missing:
            return None  # then the whole character is unknown, and a run of them may be one token
    else:
        return None
    if any(byte in _CONTINUATIONS for byte in missing):
        return None
    # Longer characters keep at least their later bytes.
    return "".join(chr(byte) for byte in missing if byte < _NUM_ASCII)


def byte_chars() -> dict[int, str]:
    """Map each byte to the character that spells it in a byte-level vocabulary.

    Source: GPT-2, encoder.py, bytes_to_unicode.
    """
    spelled = {byte: chr(byte) for byte in _PRINTABLE}
    others = (byte for byte in range(256) if byte not in spelled)
    return spelled | {byte: chr(256 + index) for index, byte in enumerate(others)}
