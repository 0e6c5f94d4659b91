"""Text to tokens, and tokens back to text as they arrive. Knows nothing of chats.

Special tokens written by a template mean what they say. The same characters inside a user's text are only text:
`encode_guarded` sees to that, so that nobody can fake a turn border by typing one.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import tokenizers

TokenArray = npt.NDArray[np.int32]

_REPLACEMENT = "\ufffd"
_MAX_OPEN_CHARS = 3
"""A character has at most 4 bytes, so at most 3 lone bytes can still become one."""
_SLIDE_AT_TOKENS = 16
_MAX_GARBAGE_TOKENS = 64
_GARBAGE_CONTEXT_TOKENS = 8


class Tokenizer:
    """A tokenizer.json, read once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._tokenizer = tokenizers.Tokenizer.from_file(str(path))
        added = self._tokenizer.get_added_tokens_decoder()
        self.special_ids = frozenset(index for index, token in added.items() if token.special)
        texts = sorted((added[index].content for index in self.special_ids), key=len, reverse=True)
        self.special_pattern = re.compile("|".join(map(re.escape, texts))) if texts else None

    def encode(self, text: str) -> TokenArray:
        """Encode; special tokens in the text become themselves.

        Returns: [num_tokens], int32.
        """
        return _encode(self._tokenizer, text)

    def encode_guarded(self, text: str, literals: Mapping[str, str]) -> TokenArray:
        """Encode a text in which markers stand for characters that look like special tokens and are none.

        Args:
            text: as rendered, with markers.
            literals: marker -> the text it stands for, which is encoded as ordinary characters.
        """
        pieces = re.split("(" + "|".join(map(re.escape, literals)) + ")", text)
        arrays = [
            _encode(self._literal_tokenizer, literals[piece]) if piece in literals else _encode(self._tokenizer, piece)
            for piece in pieces
            if piece
        ]
        return np.concatenate(arrays) if arrays else np.empty(0, np.int32)

    def decode(self, token_ids: Sequence[int]) -> str:
        """Decode all tokens, special ones too."""
        return str(self._tokenizer.decode(token_ids, skip_special_tokens=False))

    @functools.cached_property
    def _literal_tokenizer(self) -> tokenizers.Tokenizer:
        """The one that reads special tokens as text.

        Loaded when first needed, for a vocabulary takes memory, and apart from the other one, for the switch is a
        property of the whole object and requests run in threads.
        """
        tokenizer = tokenizers.Tokenizer.from_file(str(self._path))
        tokenizer.encode_special_tokens = True
        return tokenizer


class Detokenizer:
    """The text of one generation, as its tokens arrive; never half a character.

    Decoding is not local: a character may span tokens, and a decoder may treat the first token in its own way. So a
    window of the last tokens is decoded again, and what is new in its text is the answer.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._window: list[int] = []
        self._num_emitted = 0  # characters of the window's text
        self._border = 0  # tokens of the window before its last push that ended on a whole character

    def push(self, token_ids: Sequence[int]) -> str:
        """Take tokens, give the text that is certain now."""
        special = self._tokenizer.special_ids
        self._window += [token for token in token_ids if token not in special]
        text = self._tokenizer.decode(self._window)
        certain = len(text) - _num_open_chars(text)
        new = text[self._num_emitted : certain]
        self._num_emitted = max(self._num_emitted, certain)
        self._slide(is_whole=certain == len(text))
        return new

    def flush(self) -> str:
        """Give what is left at the end: bytes that will not become a character now."""
        new = self._tokenizer.decode(self._window)[self._num_emitted :]
        self._num_emitted += len(new)
        return new

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


def _encode(tokenizer: tokenizers.Tokenizer, text: str) -> TokenArray:
    # The batch call releases the interpreter's lock and computes no offsets: half the time of `encode` on long texts.
    (encoding,) = tokenizer.encode_batch_fast([text], add_special_tokens=False)
    return np.array(encoding.ids, dtype=np.int32)


def _num_open_chars(text: str) -> int:
    """Count the replacement characters at the end that more bytes could still turn into a character."""
    count = 0
    while count < min(_MAX_OPEN_CHARS, len(text)) and text[-1 - count] == _REPLACEMENT:
        count += 1
    return count
