"""A prompt that is no chat: a text, or tokens, as it came. No template writes in it and no rule changes it."""

from __future__ import annotations

import numpy as np

from gateway import checks
from gateway.errors import ContextLengthError
from gateway.tokenizer import TokenArray, Tokenizer, token_array

MAX_TOKENS = 1_000_000


def encode_text(
    text: str,
    tokenizer: Tokenizer,
    *,
    add_special_tokens: bool,
    max_model_len: int | None = None,
    field: str = "prompt",
) -> TokenArray:
    """Tokenize a text; the texts of special tokens become those tokens, as whoever writes a prompt by hand means them.

    Args:
        text: the whole prompt.
        tokenizer: of the model.
        add_special_tokens: put before it what the model's texts begin with.
        field: its name, for errors.
        max_model_len: a text that is too long for it whatever its tokens are is not tokenized; None: any is.

    Returns: [num_tokens], int32.

    Raises: ContextLengthError: it is too long.
    """
    bound = tokenizer.bound
    if max_model_len is not None and bound is not None:
        num_chars, max_chars = bound.num_chars(text), (max_model_len - 1) * bound.max_chars
        if num_chars > max_chars:
            raise ContextLengthError(
                f"{field}: got {num_chars} characters, wanted at most {max_chars}: the model takes {max_model_len} "
                f"tokens, prompt and answer together, and none stands for more than {bound.max_chars} characters",
                param=field,
            )
    token_ids = tokenizer.encode(text)
    if not add_special_tokens:
        return token_ids
    return np.concatenate([token_array(tokenizer.opening_ids), token_ids])


def check_token_ids(field: str, value: object, tokenizer: Tokenizer) -> list[int]:
    """Accept an array of tokens of the vocabulary.

    Raises: InvalidRequestError: another value, or the first entry that is no such token.
    """
    entries = checks.sequence(field, value, most=MAX_TOKENS)
    for index, entry in enumerate(entries):
        if type(entry) is not int or not 0 <= entry < tokenizer.num_tokens:
            checks.integer(f"{field}[{index}]", entry, low=0, high=tokenizer.num_tokens - 1)
    return entries
