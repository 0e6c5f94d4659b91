"""What bias and penalties do to the logits of one request, kept up to date as its tokens come. Loads no torch.

Only tokens that are biased or were seen are touched, so a step costs what they are many, not what the vocabulary is.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from engine.messages import SamplingParams


class LogitEdits:
    """A column for each token whose logit changes.

    `bias` is added first; then a positive value is divided by `factor`, another one multiplied; at last `penalty` is
    subtracted.

    Source: repetition, CTRL, Keskar et al. 2019, §4.1, the prompt included; presence and frequency, OpenAI's API
    reference, generated tokens alone.
    """

    def __init__(self, sampling: SamplingParams, prompt: npt.NDArray[np.int32]) -> None:
        self._sampling = sampling
        self._follows_answer = _penalizes(sampling)
        self._slots: dict[int, int] = {}
        self._counts: dict[int, int] = {}  # of generated tokens
        self._table = np.zeros((4, 16))
        for token_id, bias in sampling.logit_bias.items():
            slot = self._slot(token_id)
            self._table[1, slot] = bias
        if sampling.repetition_penalty != 1.0:
            for token_id in np.unique(prompt).tolist():
                slot = self._slot(token_id)
                self._table[2, slot] = sampling.repetition_penalty

    @property
    def columns(self) -> npt.NDArray[np.float64]:
        """[4, num_tokens], a view: token id, bias, factor, penalty. No token comes twice."""
        return self._table[:, : len(self._slots)]

    def append(self, token_id: int) -> None:
        """Enter a generated token."""
        if not self._follows_answer:
            return
        sampling, slot = self._sampling, self._slot(token_id)
        count = self._counts[token_id] = self._counts.get(token_id, 0) + 1
        penalty = sampling.presence_penalty + sampling.frequency_penalty * count
        self._table[2:, slot] = sampling.repetition_penalty, penalty

    def _slot(self, token_id: int) -> int:
        """Return the column of a token, a new one if it has none."""
        slot = self._slots.get(token_id)
        if slot is None:
            slot = self._slots[token_id] = len(self._slots)
            if slot == self._table.shape[1]:
                self._table = np.hstack((self._table, np.zeros_like(self._table)))
            self._table[:, slot] = token_id, 0.0, 1.0, 0.0
        return slot


def edits_of(sampling: SamplingParams, prompt: npt.NDArray[np.int32]) -> LogitEdits | None:
    """Return what a request asks for; None: its logits stay as they are."""
    return LogitEdits(sampling, prompt) if sampling.logit_bias or _penalizes(sampling) else None


def _penalizes(sampling: SamplingParams) -> bool:
    return (sampling.presence_penalty, sampling.frequency_penalty, sampling.repetition_penalty) != (0.0, 0.0, 1.0)
