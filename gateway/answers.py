"""All answers to one request, as they come: counted and timed, each told from the others by its number."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence

from gateway.answer import Answer
from gateway.answer_pieces import AnswerEnd, Piece, WholeAnswer, gather
from gateway.backends.base import Generation, TokenBatch
from gateway.metrics import GatewayMetrics


class Answers:
    """Reads a generation once.

    Attributes:
        admission: what was reused.
        num_tokens: generated so far, by all answers.
        first_token_seconds: from the arrival of the request; None: there is no token yet.

    Args:
        generation: what to read.
        answers: by choice; none of them has begun.
        arrived_at: when the request came, by `clock`.
        metrics: where it is counted.
        clock: seconds.
        tokens: takes the tokens of the first answer; None: nobody wants them.
    """

    def __init__(
        self,
        generation: Generation,
        answers: Sequence[Answer],
        *,
        arrived_at: float,
        metrics: GatewayMetrics,
        clock: Callable[[], float],
        tokens: list[int] | None = None,
    ) -> None:
        self.admission = generation.admission
        self.first_token_seconds: float | None = None
        self._generation = generation
        self._answers = answers
        self._arrived_at = arrived_at
        self._last_batch_at: dict[int, float] = {}
        self._metrics = metrics
        self._clock = clock
        self._tokens = tokens

    @property
    def num_choices(self) -> int:
        """How many answers there are."""
        return len(self._answers)

    @property
    def num_tokens(self) -> int:
        """Generated so far, by all answers."""
        return sum(answer.num_tokens for answer in self._answers)

    @property
    def finish_reason(self) -> str:
        """Of the first answer."""
        return self._answers[0].finish_reason

    async def __aiter__(self) -> AsyncIterator[tuple[int, Piece | AnswerEnd]]:
        """Yield, by choice, what is certain, and last of each choice how it ended.

        Raises: BackendError: from the generation.
        """
        async for batch in self._generation:
            answer = self._answers[batch.choice]
            self._count(batch)
            for piece in answer.push(batch):
                yield batch.choice, piece
            if answer.is_over:
                if batch.finish_reason is None:
                    self._generation.end(batch.choice)
                yield batch.choice, answer.end
        self._metrics.request_seconds.observe(self._clock() - self._arrived_at)

    def _count(self, batch: TokenBatch) -> None:
        num_tokens = len(batch.token_ids)
        if not num_tokens:
            return
        if self._tokens is not None and batch.choice == 0:
            self._tokens += batch.token_ids
        now, metrics = self._clock(), self._metrics
        last_batch_at = self._last_batch_at.get(batch.choice)
        if last_batch_at is not None:
            metrics.token_seconds.observe((now - last_batch_at) / num_tokens)
        elif self.first_token_seconds is None:
            self.first_token_seconds = now - self._arrived_at
            metrics.observe_first_token(
                self.first_token_seconds,
                num_prompt_tokens=self.admission.num_prompt_tokens,
                num_cached_tokens=self.admission.num_cached_tokens,
            )
        self._last_batch_at[batch.choice] = now
        metrics.generated_tokens.inc(num_tokens)


class Gathering:
    """Puts whole answers together from what `Answers` yields."""

    def __init__(self, num_choices: int) -> None:
        self._pieces: list[list[Piece]] = [[] for _ in range(num_choices)]
        self._ends: dict[int, AnswerEnd] = {}

    def add(self, choice: int, said: Piece | AnswerEnd) -> None:
        """Enter what was said."""
        if isinstance(said, AnswerEnd):
            self._ends[choice] = said
        else:
            self._pieces[choice].append(said)

    def answers(self) -> list[WholeAnswer]:
        """Return them by choice, once all have ended."""
        return [gather(pieces, self._ends[choice]) for choice, pieces in enumerate(self._pieces)]
