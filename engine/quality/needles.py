"""Needle retrieval: a number hidden at some depth of a text, asked for at its end."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from engine.quality.session import Session

DEPTHS = (0.1, 0.3, 0.5, 0.7, 0.9)
_NUM_ANSWER_TOKENS = 16
_NEEDLE = " The key number of the north archive is {number}. "
_QUESTION = "\n\nQuestion: What is the key number of the north archive?\nAnswer: The key number of the north archive is"


def needle_prompts(
    encode: Callable[[str], list[int]], haystack: Sequence[int], *, num_tokens: int, num_needles: int
) -> list[tuple[float, str, list[int]]]:
    """Hide numbers at every depth.

    Args:
        encode: from text to token ids.
        haystack: tokens of a text, at least num_tokens + num_needles.
        num_tokens: about the length of a prompt.
        num_needles: prompts a depth, each with another number and another stretch of the text.

    Returns:
        (depth, number, prompt) of each.
    """
    question = encode(_QUESTION)
    prompts = []
    for depth in DEPTHS:
        for trial in range(num_needles):
            number = str(10_007 + 7_919 * trial % 80_000 + int(1000 * depth))
            room = num_tokens - len(question)
            start = trial * room % max(1, len(haystack) - room)
            text = list(haystack[start : start + room])
            cut = int(depth * len(text))
            prompts.append((depth, number, text[:cut] + encode(_NEEDLE.format(number=number)) + text[cut:] + question))
    return prompts


def retrieve(
    session: Session, prompts: Sequence[tuple[float, str, list[int]]], decode: Callable[[list[int]], str]
) -> dict[str, float]:
    """Return the share of numbers found, by depth and of `all`."""
    found: dict[float, list[bool]] = {}
    for depth, number, prompt in prompts:
        steps = session.continue_greedily([prompt], _NUM_ANSWER_TOKENS)
        said = decode([int(logits.argmax()) for logits in steps])
        found.setdefault(depth, []).append(number in said.replace(",", "").replace(" ", ""))
    shares = {f"{depth:g}": sum(hits) / len(hits) for depth, hits in found.items()}
    return shares | {"all": sum(map(sum, found.values())) / max(1, len(prompts))}
