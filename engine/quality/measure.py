"""The measurements of a report, each over all rows: a text in windows, answers, needles."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from engine.quality.answers import Answers, answer, compare, repetition
from engine.quality.divergence import Divergence
from engine.quality.needles import needle_prompts, retrieve
from engine.quality.session import Session

NOISE_FLOOR = "noise_floor"
"""The row that is unquantized as well, but computes in chunks and batches of other sizes."""

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Bench:
    """The unquantized cache, the rows to hold against it, and who hears of progress."""

    base: Session
    rows: Mapping[str, Session]
    say: Callable[[str], None]

    @classmethod
    def with_noise_floor(cls, base: Session, rows: Mapping[str, Session], say: Callable[[str], None]) -> Bench:
        """Put the noise floor before the rows."""
        floor = dataclasses.replace(base, chunk=max(1, base.chunk * 3 // 8))
        return cls(base, {NOISE_FLOOR: floor, **rows}, say)

    def text(self, windows: Sequence[Sequence[int]]) -> dict[str, Row]:
        """Compare the distributions at every position of some texts, by row."""
        sums = {name: Divergence() for name in self.rows}
        for index, window in enumerate(windows):
            base = torch.cat(list(self.base.score(window))).log_softmax(dim=-1)
            for name, session in self.rows.items():
                self.say(f"text {index + 1}/{len(windows)}: {name}")
                start = 0
                for logits in session.score(window):
                    end = start + len(logits)
                    sums[name].add(base[start:end], logits, window[start + 1 : end + 1], position=start)
                    start = end
        return {name: divergence.report() for name, divergence in sums.items()}

    def answers(self, prompts: Sequence[Sequence[int]], num_tokens: int) -> tuple[Row, dict[str, Row]]:
        """Answer questions greedily; returns the unquantized cache's row, and the others."""
        self.say("answers: unquantized")
        base = answer(self.base, prompts, num_tokens)
        rows = {}
        for name, session in self.rows.items():
            self.say(f"answers: {name}")
            rows[name] = compare(base, self._answer(name, session, prompts, num_tokens))
        return {"repeated_4grams": repetition(base.tokens.tolist())}, rows

    def needles(
        self,
        haystack: Sequence[int],
        encode: Callable[[str], list[int]],
        decode: Callable[[list[int]], str],
        *,
        num_tokens: int,
        num_needles: int,
    ) -> tuple[Row, dict[str, Row]]:
        """Look for numbers in a text; returns the unquantized cache's row, and the others."""
        prompts = needle_prompts(encode, haystack, num_tokens=num_tokens, num_needles=num_needles)
        self.say(f"needles: unquantized, {len(prompts)} prompts")
        base = {"needles": retrieve(self.base, prompts, decode)}
        rows = {}
        for name, session in self.rows.items():
            self.say(f"needles: {name}")
            rows[name] = {"needles": retrieve(session, prompts, decode)}
        return base, rows

    def _answer(self, name: str, session: Session, prompts: Sequence[Sequence[int]], num_tokens: int) -> Answers:
        if name != NOISE_FLOOR or len(prompts) < 2:
            return answer(session, prompts, num_tokens)
        half = len(prompts) // 2  # other batches, other roundings
        parts = [answer(session, part, num_tokens) for part in (prompts[:half], prompts[half:])]
        return Answers(*(torch.cat(tensors) for tensors in zip(*map(dataclasses.astuple, parts), strict=True)))
