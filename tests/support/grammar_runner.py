"""A vocabulary for the chain runner, and a runner whose tokens are those that grammars allow."""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
import string
from typing import Any

import numpy as np
from llguidance import LLTokenizer, TokenizerWrapper

from engine.batch import SchedulerOutput, StepOutput
from engine.grammars import Grammars, mask_bytes
from tests.support.chain_runner import EOS_TOKEN_ID, VOCAB_SIZE, ChainRunner

_PAIRS = ("".join(pair).encode() for pair in itertools.product(string.ascii_lowercase, repeat=2))
VOCABULARY = [b"", *(bytes([byte]) for byte in range(256)), *itertools.islice(_PAIRS, VOCAB_SIZE - 257)]
"""Token 0 ends an answer, then all bytes, then pairs of letters."""
VOCABULARY += [f"{number:03d}".encode() for number in range(VOCAB_SIZE - len(VOCABULARY))]


class _Vocabulary:
    eos_token_id = EOS_TOKEN_ID
    bos_token_id = None
    special_token_ids = (EOS_TOKEN_ID,)

    def __init__(self, tokens: list[bytes]) -> None:
        self.tokens = tokens

    def __call__(self, text: bytes) -> list[int]:
        return [1 + byte for byte in text]


def make_grammars(tokens: list[bytes] = VOCABULARY, *, vocab_size: int | None = None) -> Grammars:
    """Grammars of a vocabulary whose tokens 1 to 256 are the bytes."""
    padding = [b""] * ((vocab_size or len(tokens)) - len(tokens))
    return Grammars(LLTokenizer(TokenizerWrapper(_Vocabulary(tokens + padding))))


def regex_grammar(pattern: str) -> str:
    """A Lark grammar of one pattern without slashes."""
    return f"start: /{pattern}/"


def schema_grammar(schema: dict[str, Any]) -> str:
    """A grammar of a JSON schema."""
    return json.dumps({"grammars": [{"json_schema": schema | {"x-guidance": {"whitespace_flexible": False}}}]})


def text_of(token_ids: list[int]) -> str:
    """What tokens of the vocabulary spell, without the end."""
    return b"".join(VOCABULARY[token] for token in token_ids).decode()


def allowed_tokens(grammar: Any, vocab_size: int = VOCAB_SIZE) -> list[int]:
    """What may come next."""
    mask = np.zeros(mask_bytes(vocab_size), dtype=np.uint8)
    grammar.fill_mask(mask)
    bits = np.unpackbits(mask, bitorder="little")
    assert not bits[vocab_size:].any()
    return np.flatnonzero(bits).tolist()


class GrammarRunner(ChainRunner):
    """Chooses by the digest among the tokens that are allowed."""

    def execute(self, output: SchedulerOutput) -> StepOutput:
        """As a runner does."""
        result = super().execute(output)
        chosen = dict(result.token_ids)
        for part in output.requests:
            if part.sample and part.grammar is not None:
                allowed = allowed_tokens(part.grammar)
                chosen[part.request_id] = allowed[chosen[part.request_id] % len(allowed)]
        return dataclasses.replace(result, token_ids=chosen)


def matches(pattern: str, token_ids: list[int]) -> bool:
    """Tell whether an answer with its end is what a pattern allows."""
    return token_ids[-1] == EOS_TOKEN_ID and re.fullmatch(pattern, text_of(token_ids)) is not None
