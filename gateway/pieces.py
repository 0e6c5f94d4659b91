"""Tokenizes a rendered text piece by piece, and each piece once.

The border tokens that the template writes cut the text; the ids of a piece between two of them are remembered.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from gateway.token_borders import Borders
from gateway.token_memo import KnownPiece, TokenMemo
from gateway.tokenizer import TokenArray, Tokenizer

_Key = tuple[str | None, bool, str]
"""Tenant, whether it stands at the start of the prompt, text."""


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """A run of characters and its tokens."""

    text: str
    token_ids: TokenArray
    known: KnownPiece | None = None
    """Of ordinary text, whose tokens end inside of it."""
    is_first: bool = False
    """Whether it stands at the start of the prompt."""


class PieceEncoder:
    """Encodes for one tokenizer and template. Safe to use from several threads."""

    def __init__(self, tokenizer: Tokenizer, borders: Borders, memo: TokenMemo) -> None:
        self._tokenizer = tokenizer
        self._borders = borders
        self._memo = memo
        self._pattern = borders.pattern() if borders.ids else None
        self._of_border = {text: np.array([index], dtype=np.int32) for text, index in borders.ids.items()}

    def encode(
        self, text: str, literals: Mapping[str, str], *, tenant: str | None, is_start: bool = True
    ) -> list[Piece]:
        """Encode a text.

        Args:
            text: as rendered, with markers.
            literals: marker -> the text that it stands for, which is encoded as ordinary characters.
            tenant: whose pieces are remembered; None: nobody's, and nothing is.
            is_start: whether it stands at the start of the prompt.

        Returns: pieces that together are the text; ids equal those of the whole text, but for markers.
        """
        cut = list(self._cut(text, literals))
        known = self._known(
            dict.fromkeys(
                (tenant, is_start and index == 0, piece)
                for index, piece in enumerate(cut)
                if piece not in self._of_border and piece not in literals
            )
        )
        spelled = {marker: self._tokenizer.encode_literal(literal) for marker, literal in literals.items()}
        pieces = []
        for index, piece in enumerate(cut):
            ids = self._of_border.get(piece)
            ids = spelled.get(piece) if ids is None else ids
            if ids is not None:
                pieces.append(Piece(piece, ids))
            else:
                is_first = is_start and index == 0
                entry = known[tenant, is_first, piece]
                pieces.append(Piece(piece, entry.token_ids, entry, is_first))
        return pieces

    def num_new_chars(self, text: str, literals: Mapping[str, str], *, tenant: str | None) -> int:
        """Count those that `encode` would tokenize, for nobody remembers their tokens."""
        pieces = enumerate(self._cut(text, literals))
        return sum(
            len(piece)
            for index, piece in pieces
            if piece not in self._of_border and piece not in literals and not self._knows((tenant, index == 0, piece))
        )

    def ends(self, piece: Piece) -> TokenArray:
        """Tell where each token of a piece ends in its text.

        Returns: [num_tokens], int32, in characters, never falling. Tokens that stand for others' text all end with it.
        """
        if piece.known is None:
            return np.full(len(piece.token_ids), len(piece.text), dtype=np.int32)
        if piece.known.ends is None:
            lead = self._lead(is_first=piece.is_first)
            ends = self._tokenizer.ends(lead + piece.text) - len(lead)
            piece.known.ends = ends[1:] if lead else ends
        return piece.known.ends

    def _cut(self, text: str, literals: Mapping[str, str]) -> Iterator[str]:
        parts = self._pattern.split(text) if self._pattern else [text]
        if literals:
            markers = re.compile("(" + "|".join(map(re.escape, literals)) + ")")
            parts = [piece for part in parts for piece in markers.split(part)]
        return filter(None, parts)

    def _known(self, keys: Mapping[_Key, None]) -> dict[_Key, KnownPiece]:
        """Look pieces up, and encode those that are new in one call."""
        known: dict[_Key, KnownPiece] = {}
        new = []
        for key in keys:
            entry = self._memo.get(key) if self._is_remembered(key) else None
            if entry is None:
                new.append(key)
            else:
                known[key] = entry
        leads = [self._lead(is_first=is_first) for _, is_first, _ in new]
        encoded = self._tokenizer.encode_all([lead + text for lead, (_, _, text) in zip(leads, new, strict=True)])
        for key, lead, ids in zip(new, leads, encoded, strict=True):
            known[key] = KnownPiece(ids[1:] if lead else ids)
            if self._is_remembered(key):
                self._memo.put(key, known[key], len(key[2]))
        return known

    def _knows(self, key: _Key) -> bool:
        return self._is_remembered(key) and key in self._memo

    def _is_remembered(self, key: _Key) -> bool:
        return self._pattern is not None and key[0] is not None

    def _lead(self, *, is_first: bool) -> str:
        return "" if is_first else self._borders.lead
