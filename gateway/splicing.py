"""Puts the very tokens of earlier answers back into a prompt, where they stand for the same text.

Tokenizing an answer's text again may give other ids than the model wrote, and what is cached are the model's. They may
stand where tokenization is cut anyway: behind the generation prompt, which ended the prompt at that time, and before a
border token.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from gateway.region_page import CharSpan, windows
from gateway.token_borders import Borders
from gateway.tokenizer import TokenArray, Tokenizer

_BROKEN_CHAR = "\ufffd"


@dataclass(frozen=True, slots=True, eq=False)
class Splice:
    """Tokens, and the characters that they stand for."""

    message: int
    start: int
    end: int
    token_ids: TokenArray


class Splicer:
    """For one tokenizer and template."""

    def __init__(self, tokenizer: Tokenizer, borders: Borders) -> None:
        self._tokenizer = tokenizer
        self._borders = borders

    def place(
        self,
        text: str,
        places: Sequence[CharSpan | None],
        answers: Mapping[int, TokenArray],
        generation_prompts: Sequence[str],
    ) -> list[Splice]:
        """Find where answers can stand.

        Args:
            text: rendered.
            places: where each message stands in it, as far as that is known.
            answers: message -> its tokens as the model wrote them, with or without what ended them.
            generation_prompts: what the template writes where an answer begins.

        Returns: in order, without overlap; an answer that cannot stand anywhere is left out.
        """
        if not self._borders.is_lossless:
            return []
        splices: list[Splice] = []
        for message, (low, high) in windows(places, len(text)):
            if message in answers:
                window = (max([low, *(splice.end for splice in splices[-1:])]), high)
                splice = self._place_one(text, message, answers[message], generation_prompts, window)
                splices += [splice] if splice else []
        return splices

    def _place_one(
        self, text: str, message: int, token_ids: TokenArray, generation_prompts: Sequence[str], window: CharSpan
    ) -> Splice | None:
        for ids in self._with_and_without_end(token_ids):
            answer = self._decode(ids)
            for prompt in generation_prompts if answer else ():
                found = text.find(prompt + answer, max(window[0] - len(prompt), 0), window[1])
                start, end = found + len(prompt), found + len(prompt) + len(answer)
                # Where nothing marks the beginning of an answer, a border must.
                is_marked = bool(prompt) or self._borders.at(text, start)
                if found >= 0 and is_marked and self._borders.at(text, end):
                    return Splice(message, start, end, ids)
        return None

    def _with_and_without_end(self, token_ids: TokenArray) -> Iterator[TokenArray]:
        yield token_ids
        end = len(token_ids)
        while end and int(token_ids[end - 1]) in self._tokenizer.special_ids:
            end -= 1
        if 0 < end < len(token_ids):
            yield token_ids[:end]

    def _decode(self, token_ids: TokenArray) -> str:
        """Decode as behind a border; give nothing where a character is broken, for its other half may follow."""
        lead = self._borders.lead
        text = self._tokenizer.decode([self._borders.ids[lead], *token_ids.tolist()])[len(lead) :]
        return "" if _BROKEN_CHAR in text else text
