"""Text to tokens, and tokens back to text as they arrive. Knows nothing of chats.

Special tokens written by a template mean what they say. The same characters inside a user's text are only text:
`encode_literal` sees to that, so that nobody can fake a turn border by typing one.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import orjson
import tokenizers

from gateway import literals
from gateway.model_files import ModelFilesError
from gateway.token_bound import byte_chars, token_bound

TokenArray = npt.NDArray[np.int32]

_REPLACEMENT = "\ufffd"
_LONE_BYTE = re.compile("<0x([0-9A-F]{2})>")
_MAX_OPEN_CHARS = 3
"""A character has at most 4 bytes, so at most 3 lone bytes can still become one."""
_SLIDE_AT_TOKENS = 16
_MAX_GARBAGE_TOKENS = 64
_GARBAGE_CONTEXT_TOKENS = 8


@dataclass(frozen=True, slots=True)
class AddedToken:
    """A token that is looked for in the text before all others."""

    index: int
    text: str
    normalized: bool
    """Looked for in normalized text, behind the others."""
    takes_blanks: bool
    """The blanks beside it are part of it."""
    single_word: bool


class Tokenizer:
    """A tokenizer.json, read once.

    Attributes:
        special_ids: of special tokens.
        special_pattern: finds their texts; None: there are none.
        added_tokens: special ones and others.
        bound: of characters by tokens; None: none is known.
        opening_ids: special tokens that a text of its own begins with, such as `<s>`; templates write their own.
        num_tokens: in the vocabulary.

    Raises: ModelFilesError: the file holds no tokenizer.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        loaded = _read(path)
        self.opening_ids = _opening_ids(loaded)
        self._tokenizer = _bare(loaded)
        self.num_tokens = int(self._tokenizer.get_vocab_size(with_added_tokens=True))
        spec = orjson.loads(path.read_bytes())
        self.bound = token_bound(spec)
        self._bytes_of_chars = _spelling(spec.get("decoder"))
        self._decodes_alone = (spec.get("decoder") or {}).get("type") == "ByteLevel"
        self._whole_texts: dict[int, str | None] = {}
        added = self._tokenizer.get_added_tokens_decoder()
        self._added_texts = {index: token.content for index, token in added.items()}
        self.added_tokens = [
            AddedToken(index, token.content, token.normalized, token.lstrip or token.rstrip, token.single_word)
            for index, token in added.items()
        ]
        self.special_ids = frozenset(index for index, token in added.items() if token.special)
        self._special_ids_of_texts = {added[index].content: index for index in self.special_ids}
        texts = sorted((added[index].content for index in self.special_ids), key=len, reverse=True)
        self.special_pattern = re.compile("|".join(map(re.escape, texts))) if texts else None
        self._is_plain_in_json = all(json.dumps(text, ensure_ascii=False) == f'"{text}"' for text in texts)
        # One pattern for each first character: with a fixed one a search is ten times as fast.
        firsts = {text[0] for text in texts}
        self._special_searches = [
            re.compile("|".join(re.escape(text) for text in texts if text[0] == first)).search for first in firsts
        ]

    def encode(self, text: str) -> TokenArray:
        """Encode; special tokens in the text become themselves.

        Returns: [num_tokens], int32.
        """
        return self.encode_all([text])[0]

    def encode_all(self, texts: list[str]) -> list[TokenArray]:
        """Encode several texts in one call, each by itself."""
        return _encode_all(self._tokenizer, texts)

    def encode_literal(self, text: str) -> TokenArray:
        """Encode what looks like a special token and is none as ordinary characters."""
        return _encode_all(self._literal_tokenizer, [text])[0]

    def ends(self, text: str) -> TokenArray:
        """Tell where each token of a text ends in it.

        Returns: [num_tokens], int32, in characters, never falling.
        """
        (encoding,) = self._tokenizer.encode_batch([text], add_special_tokens=False)
        ends = np.array([end for _, end in encoding.offsets], dtype=np.int32)
        return np.maximum.accumulate(ends) if len(ends) else ends

    def has_special(self, value: object) -> bool:
        """Whether a text anywhere in a JSON value may hold the characters of a special token."""
        # One long text is searched sooner than many short ones; where JSON would escape a character, all are.
        texts = [orjson.dumps(value).decode()] if self._is_plain_in_json else literals.texts(value)
        return any(search(text) for text in texts for search in self._special_searches)

    def decode(self, token_ids: Sequence[int]) -> str:
        """Decode all tokens, special ones too."""
        return str(self._tokenizer.decode(token_ids, skip_special_tokens=False))

    def whole_text(self, token: int) -> str | None:
        """Give the text of a token that is the same beside any other ones; None: it may depend on them."""
        if token not in self._whole_texts:
            text = self.decode((token,)) if self._decodes_alone else _REPLACEMENT
            self._whole_texts[token] = None if _REPLACEMENT in text else text
        return self._whole_texts[token]

    def special_id(self, text: str) -> int | None:
        """Find the special token that a text is; None: it is none."""
        return self._special_ids_of_texts.get(text)

    @property
    def special_texts(self) -> Collection[str]:
        """Of special tokens."""
        return self._special_ids_of_texts.keys()

    def names(self, token_ids: Sequence[int]) -> list[str | None]:
        """Give the vocabulary's spelling of each token; None: it has none of this number."""
        return [self._tokenizer.id_to_token(token) for token in token_ids]

    def token_bytes(self, token_id: int) -> bytes:
        """Spell one token, which may be a part of a character; nothing where the vocabulary ends before its id."""
        added = self._added_texts.get(token_id)
        if added is not None:
            return added.encode()
        piece = self._tokenizer.id_to_token(token_id) or ""
        if self._bytes_of_chars:
            spelled = map(self._bytes_of_chars.get, piece)
            return bytes(byte for byte in spelled if byte is not None)
        if byte := _LONE_BYTE.fullmatch(piece):
            return bytes.fromhex(byte[1])
        return piece.replace("▁", " ").encode()

    @functools.cached_property
    def char_endings(self) -> Sequence[Sequence[int]]:
        """Tokens of bytes of which one sequence or another completes any character that was begun.

        Source: Unicode Standard, table 3-7: the second byte may be 80 or A0, whatever the first; later ones may be 80.
        """
        low, high = self._byte(0x80), self._byte(0xA0)
        if low is None or high is None:
            return []
        return [[second, *[low] * count] for second in (low, high) for count in range(_MAX_OPEN_CHARS)]

    def _byte(self, byte: int) -> int | None:
        """Find the token of one byte, in the spelling of either kind of vocabulary."""
        for text in (f"<0x{byte:02X}>", byte_chars()[byte]):
            token = self._tokenizer.token_to_id(text)
            if token is not None:
                return int(token)
        return None

    @functools.cached_property
    def _literal_tokenizer(self) -> tokenizers.Tokenizer:
        """The one that reads special tokens as text.

        Loaded when first needed, for a vocabulary takes memory, and apart from the other one, for the switch is a
        property of the whole object and requests run in threads.
        """
        tokenizer = _bare(_read(self._path))
        tokenizer.encode_special_tokens = True
        return tokenizer


class Detokenizer:
    """The text of one generation, as its tokens arrive; never half a character.

    Decoding is not local: a character may span tokens, and a decoder may treat the first token in its own way. So a
    window of the last tokens is decoded again, and what is new in its text is the answer. Nearly always, between characters
    and where tokens are spelled in bytes, the text of a token is known by itself.
    """

    def __init__(self, tokenizer: Tokenizer, keep: Collection[str] = ()) -> None:
        """Args: keep: texts of special tokens that are given all the same; the others have no text."""
        self._tokenizer = tokenizer
        self._dropped = tokenizer.special_ids - {tokenizer.special_id(text) for text in keep}
        self._window: list[int] = []
        self._num_emitted = 0  # characters of the window's text
        self._border = 0  # tokens of the window before its last push that ended on a whole character

    def push(self, token_ids: Sequence[int]) -> str:
        """Take tokens, give the text that is certain now."""
        dropped = self._dropped
        said = [token for token in token_ids if token not in dropped]
        if self._border == len(self._window) and (text := self._whole_text(said)) is not None:
            self._window, self._num_emitted, self._border = [], 0, 0
            return text
        self._window += said
        text = self._tokenizer.decode(self._window)
        certain = len(text) - _num_open_chars(text)
        new = text[self._num_emitted : certain]
        self._num_emitted = max(self._num_emitted, certain)
        self._slide(is_whole=certain == len(text))
        return new

    def _whole_text(self, token_ids: Sequence[int]) -> str | None:
        texts = [self._tokenizer.whole_text(token) for token in token_ids]
        return None if None in texts else "".join(cast("list[str]", texts))

    def flush(self) -> str:
        """Give what is left at the end: bytes that are no character, but not those of one that was only begun."""
        text = self._tokenizer.decode(self._window)
        if text.endswith(_REPLACEMENT):
            text = self._without_open_char(text)
        new = text[self._num_emitted :]
        self._num_emitted += len(new)
        return new

    def _without_open_char(self, text: str) -> str:
        """Cut the bytes that some more bytes would make a character, which shows when those are added."""
        for ending in self._tokenizer.char_endings:
            whole = self._tokenizer.decode([*self._window, *ending])
            if len(whole) <= len(text) and whole[-1] != _REPLACEMENT and text.startswith(whole[:-1]):
                return whole[:-1]
        return text

    def _slide(self, *, is_whole: bool) -> None:
        """Drop old tokens, at the border of a character; in a long run of garbage anywhere, for UTF-8 finds its feet."""
        start = 0
        if is_whole and len(self._window) > max(_SLIDE_AT_TOKENS, self._border):
            start = self._border
        elif not is_whole and len(self._window) > _MAX_GARBAGE_TOKENS:
            start = len(self._window) - _GARBAGE_CONTEXT_TOKENS
        if start:
            self._window = self._window[start:]
            text = self._tokenizer.decode(self._window)
            self._num_emitted = len(text) - _num_open_chars(text)
            self._border = 0
        if is_whole:
            self._border = len(self._window)


def _spelling(decoder: Mapping[str, Any] | None) -> Mapping[str, int]:
    """Map characters of the vocabulary to the bytes that they stand for; empty: it is spelled in plain text."""
    parts = (decoder or {}).get("decoders", [decoder])
    if any(part and part["type"] == "ByteLevel" for part in parts):
        return {char: byte for byte, char in byte_chars().items()}
    return {}


def _read(path: Path) -> tokenizers.Tokenizer:
    try:
        return tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises nothing narrower
        raise ModelFilesError(f"{path}: got a file that is no tokenizer ({error}), wanted the model's own") from error


def _opening_ids(tokenizer: tokenizers.Tokenizer) -> tuple[int, ...]:
    """Find what its post-processor puts before a text."""
    encoding = tokenizer.encode("a", add_special_tokens=True)
    num_special = next((place for place, special in enumerate(encoding.special_tokens_mask) if not special), 0)
    return tuple(encoding.ids[:num_special])


def _bare(tokenizer: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    tokenizer.no_truncation()  # some files carry the settings of a training run
    tokenizer.no_padding()
    tokenizer.post_processor = None  # templates write all special tokens, and its offsets leave blanks out
    return tokenizer


def token_array(token_ids: Sequence[int]) -> TokenArray:
    """Give tokens as an array.

    Returns: [num_tokens], int32.
    """
    return np.array(token_ids, dtype=np.int32)


def _encode_all(tokenizer: tokenizers.Tokenizer, texts: list[str]) -> list[TokenArray]:
    # The batch call releases the interpreter's lock and computes no offsets: half the time of `encode` on long texts.
    encodings = tokenizer.encode_batch_fast(texts, add_special_tokens=False)
    return [np.array(encoding.ids, dtype=np.int32) for encoding in encodings]


def _num_open_chars(text: str) -> int:
    """Count the replacement characters at the end that more bytes could still turn into a character."""
    if not text.endswith(_REPLACEMENT):  # nearly always
        return 0
    count = 1
    while count < min(_MAX_OPEN_CHARS, len(text)) and text[-1 - count] == _REPLACEMENT:
        count += 1
    return count
