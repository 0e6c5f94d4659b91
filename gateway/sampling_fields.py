"""Checks of the fields that say how tokens are chosen and what is told of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway import checks
from gateway.errors import InvalidRequestError, shown

MAX_BIASES = 300
MAX_BIAS = 100.0
MAX_TOP_LOGPROBS = 20
MAX_ANSWERS = 128
"""To one request. The engine may hold fewer at the same time."""
MAX_PENALTY = 2.0
"""Of presence and frequency, either way."""
MIN_REPETITION_PENALTY, MAX_REPETITION_PENALTY = 0.1, 10.0
_MAX_ID_DIGITS = 9  # fits an int32; whether the model has the token the engine knows


def share(field: str, value: object) -> float:
    """Accept a probability, or a part of one."""
    return checks.number(field, value, low=0, high=1)


def penalty(field: str, value: object) -> float:
    """Accept a penalty of presence or frequency."""
    return checks.number(field, value, low=-MAX_PENALTY, high=MAX_PENALTY)


def repetition_penalty(field: str, value: object) -> float:
    """Accept a factor."""
    return checks.number(field, value, low=MIN_REPETITION_PENALTY, high=MAX_REPETITION_PENALTY)


def logit_bias(field: str, value: object) -> dict[int, float]:
    """Accept an object of numbers, whose keys are token ids as strings; one that is 0 does nothing, and is dropped."""
    entries = checks.mapping(field, value)
    if len(entries) > MAX_BIASES:
        checks.refuse(field, value, f"at most {MAX_BIASES} entries")
    biases: dict[int, float] = {}
    for name, entry in entries.items():
        if not (name.isascii() and name.isdecimal() and len(name) <= _MAX_ID_DIGITS):
            raise InvalidRequestError(f"{field}: got the key {shown(name)}, wanted the id of a token", param=field)
        bias = checks.number(f"{field}.{name}", entry, low=-MAX_BIAS, high=MAX_BIAS)
        if bias:
            biases[int(name)] = bias
    return biases


def num_logprobs(fields: Mapping[str, Any]) -> int | None:
    """Read `logprobs` and `top_logprobs`: how many likely tokens to tell of with each one; None: nothing at all."""
    wanted = checks.boolean("logprobs", fields.get("logprobs", False))
    num = checks.integer("top_logprobs", fields.get("top_logprobs", 0), low=0, high=MAX_TOP_LOGPROBS)
    if num and not wanted:
        raise InvalidRequestError(
            f"top_logprobs: got {num} without logprobs, wanted it only where logprobs is true", param="top_logprobs"
        )
    return num if wanted else None


def num_prompt_logprobs(fields: Mapping[str, Any], *, stream: bool) -> int | None:
    """Read `prompt_logprobs`: the same for each token of the prompt, as vLLM has it."""
    if "prompt_logprobs" not in fields:
        return None
    if stream:
        checks.refuse("prompt_logprobs", fields["prompt_logprobs"], "it left out where stream is true")
    return checks.integer("prompt_logprobs", fields["prompt_logprobs"], low=0, high=MAX_TOP_LOGPROBS)


def num_answers(field: str, value: object) -> int:
    """Accept a number of answers."""
    return checks.integer(field, value, low=1, high=MAX_ANSWERS)
