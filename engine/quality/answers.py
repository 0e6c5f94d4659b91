"""Greedy answers to questions of our own: how long they stay those of the unquantized cache, and whether they degrade.

An answer is not cut at the end-of-sequence token: errors add up over a long run, and that is what is looked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from engine.quality.session import Session

QUESTIONS = Path(__file__).with_name("questions.txt")
_NUM_KEPT = 16  # candidates a step: the other cache's token is nearly always the second
_NUM_GRAM = 4
_NUM_SPANS = 4


@dataclass(frozen=True, slots=True)
class Answers:
    """What a cache said, and how sure the model was."""

    tokens: torch.Tensor
    """[num_questions, num_tokens]."""
    candidates: torch.Tensor
    """[num_questions, num_tokens, 16]: the likeliest tokens of each step."""
    logits: torch.Tensor
    """Their logits, like candidates."""


def read_questions(encode: Callable[[str], list[int]], limit: int | None = None) -> list[list[int]]:
    """Return the prompts as token ids.

    Args:
        encode: from a user's message to a whole prompt.
        limit: use only the first ones.
    """
    lines = QUESTIONS.read_text(encoding="utf-8").splitlines()
    return [encode(line) for line in lines[:limit]]


def answer(session: Session, prompts: Sequence[Sequence[int]], num_tokens: int) -> Answers:
    """Continue every prompt greedily."""
    kept = [logits.topk(_NUM_KEPT) for logits in session.continue_greedily(prompts, num_tokens)]
    candidates = torch.stack([step.indices.cpu() for step in kept], dim=1)
    logits = torch.stack([step.values.cpu() for step in kept], dim=1)
    return Answers(candidates[:, :, 0], candidates, logits)


def compare(base: Answers, other: Answers) -> dict[str, Any]:
    """Return ROUGE-L, where answers part and how close the call was there, and how often they repeat themselves."""
    rouge, divergences = [], []
    for question, (expected, got) in enumerate(zip(base.tokens.tolist(), other.tokens.tolist(), strict=True)):
        rouge.append(rouge_l(expected, got))
        index = next((i for i, (a, b) in enumerate(zip(expected, got, strict=True)) if a != b), None)
        if index is not None:
            divergences.append(
                {"question": question, "index": index, "margin": _margin(base, question, index, got[index])}
            )
    indices = sorted(divergence["index"] for divergence in divergences)
    return {
        "rouge_l": sum(rouge) / len(rouge),
        "num_identical": len(rouge) - len(divergences),
        "first_divergence_median": indices[len(indices) // 2] if indices else None,
        "margin_max": max((divergence["margin"] for divergence in divergences), default=0.0),
        "divergences": divergences,
        "repeated_4grams": repetition(other.tokens.tolist()),
    }


def rouge_l(expected: Sequence[int], got: Sequence[int]) -> float:
    """Return the F1 of the longest common subsequence.

    Source: Lin 2004, "ROUGE: A Package for Automatic Evaluation of Summaries".
    """
    row = [0] * (len(got) + 1)
    for a in expected:
        diagonal = 0
        for j, b in enumerate(got, 1):
            diagonal, row[j] = row[j], diagonal + 1 if a == b else max(row[j], row[j - 1])
    return 2 * row[-1] / (len(expected) + len(got))


def repetition(answers: Sequence[Sequence[int]]) -> list[float]:
    """Return the share of 4-grams that stood earlier in the same answer, by quarter of the answer."""
    seen_again: list[list[bool]] = [[] for _ in range(_NUM_SPANS)]
    for tokens in answers:
        seen: set[tuple[int, ...]] = set()
        for gram, span in _grams(tokens):
            seen_again[span].append(gram in seen)
            seen.add(gram)
    return [sum(span) / max(len(span), 1) for span in seen_again]


def _grams(tokens: Sequence[int]) -> Iterator[tuple[tuple[int, ...], int]]:
    """Each 4-gram and the quarter that it ends in."""
    for end in range(_NUM_GRAM, len(tokens) + 1):
        yield tuple(tokens[end - _NUM_GRAM : end]), (end - 1) * _NUM_SPANS // len(tokens)


def _margin(base: Answers, question: int, index: int, token: int) -> float:
    """Nats by which the unquantized cache preferred its own token; at least that, for an unlikely one."""
    logits, candidates = base.logits[question, index], base.candidates[question, index]
    found = (candidates == token).nonzero()
    return float(logits[0] - logits[int(found[0]) if len(found) else -1])
