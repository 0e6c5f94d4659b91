"""What grew within the last minutes: counters only tell of all the time since the start. Knows no clock."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

SPAN_SECONDS = 300.0
SAMPLE_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Sample:
    """Counters of one moment."""

    at: float
    """Seconds of a clock that never goes back."""
    counts: Mapping[str, int]
    """Those that only grow, unless what counts them begins anew."""
    num_waiting: int | None = 0
    """Requests before admission; None: nobody knows."""


class Lately:
    """Samples of the last minutes, taken every few seconds whether or not anybody asks."""

    def __init__(self) -> None:
        self._samples: deque[Sample] = deque()

    def note(self, sample: Sample) -> None:
        """Take one, the newest; those that are too old go."""
        self._samples.append(sample)
        while sample.at - self._samples[0].at > SPAN_SECONDS:
            self._samples.popleft()

    def growth(self, now: Sample) -> dict[str, int]:
        """Say how much each count grew since the oldest sample; without one, since the start."""
        return {name: _growth(self._oldest(name), count) for name, count in now.counts.items()}

    def _oldest(self, name: str) -> int:
        """Give a count as it was first known: an engine that did not answer told none of its own."""
        return next((sample.counts[name] for sample in self._samples if name in sample.counts), 0)

    def waiting_seconds(self, now: Sample) -> float:
        """Say for how long requests have waited at every look, up to this one."""
        since = now.at
        for sample in (now, *reversed(self._samples)):
            if sample.num_waiting == 0:
                break
            since = sample.at
        return now.at - since


def _growth(before: int, after: int) -> int:
    """A counter that is lower than before began anew."""
    return after - before if after >= before else after
