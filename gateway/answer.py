"""One generation as text: detokenized, cut at a stop string, counted and timed.

Knows nothing of HTTP; what streams and what answers in one piece both read it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence

from gateway.backends.base import Generation, TokenBatch
from gateway.metrics import GatewayMetrics
from gateway.stops import StopMatcher
from gateway.tokenizer import Detokenizer, Tokenizer


class Answer:
    """Reads a generation once. `finish_reason` and `num_tokens` are final when the text is.

    Attributes:
        admission: what was reused.
        num_tokens: generated so far, the end-of-sequence token among them.
        finish_reason: `stop` or `length`.
        first_token_seconds: from the arrival of the request; None: there is no token yet.

    Args:
        generation: what to read.
        tokenizer: of the model.
        stops: strings that end the answer.
        arrived_at: when the request came, by `clock`.
        metrics: where it is counted.
        clock: seconds.
        tokens: takes the generated tokens; None: nobody wants them.
    """

    def __init__(
        self,
        generation: Generation,
        tokenizer: Tokenizer,
        *,
        stops: Sequence[str],
        arrived_at: float,
        metrics: GatewayMetrics,
        clock: Callable[[], float],
        tokens: list[int] | None = None,
    ) -> None:
        self.admission = generation.admission
        self.num_tokens = 0
        self.finish_reason = "length"
        self.first_token_seconds: float | None = None
        self._generation = generation
        self._detokenizer = Detokenizer(tokenizer)
        self._stops = StopMatcher(stops)
        self._arrived_at = arrived_at
        self._last_batch_at: float | None = None
        self._metrics = metrics
        self._clock = clock
        self._tokens = tokens

    async def text(self) -> AsyncIterator[str]:
        """Yield text that is certain, never an empty one.

        Raises: BackendError: from the generation.
        """
        async for batch in self._generation:
            self._count(batch)
            text, is_last = self._take(batch)
            if text:
                yield text
            if is_last:
                self._metrics.request_seconds.observe(self._clock() - self._arrived_at)
                return

    def _take(self, batch: TokenBatch) -> tuple[str, bool]:
        token_ids = batch.token_ids
        if batch.finish_reason == "stop":
            token_ids = token_ids[:-1]  # the end-of-sequence token
        text = self._detokenizer.push(token_ids)
        if batch.finish_reason:
            text += self._detokenizer.flush()
        scan = self._stops.push(text)
        if scan.stopped:
            self.finish_reason = "stop"
            return scan.text, True
        if batch.finish_reason:
            self.finish_reason = batch.finish_reason
            return scan.text + self._stops.flush(), True
        return scan.text, False

    def _count(self, batch: TokenBatch) -> None:
        num_tokens = len(batch.token_ids)
        if not num_tokens:
            return
        if self._tokens is not None:
            self._tokens += batch.token_ids
        now = self._clock()
        if self._last_batch_at is None:
            self.first_token_seconds = now - self._arrived_at
            self._metrics.first_token_seconds.observe(self.first_token_seconds)
        else:
            self._metrics.token_seconds.observe((now - self._last_batch_at) / num_tokens)
        self._last_batch_at = now
        self.num_tokens += num_tokens
        self._metrics.generated_tokens.inc(num_tokens)
