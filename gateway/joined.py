"""Several prompts of one request, generated side by side and read as one: their answers are numbered on."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

from gateway.backends.base import Admission, Backend, Generation, GenerationRequest, TokenBatch, TokenLogprobs
from prefixcache.interface import Reason


async def generate_all(backend: Backend, requests: Sequence[GenerationRequest]) -> Generation:
    """Wait until all are admitted; where one cannot be, or the wait is cancelled, none goes on.

    Args:
        backend: that generates.
        requests: at least one, each with as many answers as the first.

    Raises: BackendError: from the backend.
    """
    if len(requests) == 1:
        return await backend.generate(requests[0])
    tasks = [asyncio.ensure_future(backend.generate(request)) for request in requests]
    try:
        generations = await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        for outcome in await asyncio.gather(*tasks, return_exceptions=True):
            if not isinstance(outcome, BaseException):
                outcome.abort()
        raise
    return JoinedGeneration(generations, requests[0].sampling.n)


class JoinedGeneration:
    """Answer `i` of prompt `p` is choice `p * n + i`."""

    def __init__(self, generations: Sequence[Generation], n: int) -> None:
        self._generations = generations
        self._n = n
        self._ended: set[int] = set()
        self._readers: list[asyncio.Task[None]] = []
        self.admission = _sum([generation.admission for generation in generations])

    @property
    def prompt_logprobs(self) -> Sequence[Sequence[TokenLogprobs]]:
        """By prompt, in order."""
        return [said for generation in self._generations for said in generation.prompt_logprobs]

    async def __aiter__(self) -> AsyncIterator[TokenBatch]:
        """Yield batches as they come, of whichever prompt."""
        arrived: asyncio.Queue[TokenBatch | None] = asyncio.Queue()

        async def read(number: int, generation: Generation) -> None:
            async for batch in generation:
                arrived.put_nowait(replace(batch, choice=number * self._n + batch.choice))

        self._readers = [asyncio.create_task(read(*numbered)) for numbered in enumerate(self._generations)]
        everything = asyncio.gather(*self._readers)
        everything.add_done_callback(lambda _: arrived.put_nowait(None))
        try:
            while (batch := await arrived.get()) is not None:
                if batch.choice not in self._ended:  # it may have come before the end
                    yield batch
            await everything  # raises what went wrong
        finally:
            self._stop_reading()
            await asyncio.gather(everything, return_exceptions=True)

    def end(self, choice: int) -> None:
        """Stop one answer; the others go on."""
        self._ended.add(choice)
        prompt, number = divmod(choice, self._n)
        self._generations[prompt].end(number)

    def abort(self) -> None:
        """Stop all of it."""
        self._stop_reading()
        for generation in self._generations:
            generation.abort()

    def _stop_reading(self) -> None:
        for reader in self._readers:
            reader.cancel()


def _sum(admissions: Sequence[Admission]) -> Admission:
    reasons: Counter[str] = Counter()
    for admission in admissions:
        reasons.update(admission.reasons)
    return Admission(
        num_prompt_tokens=sum(admission.num_prompt_tokens for admission in admissions),
        num_cached_tokens=sum(admission.num_cached_tokens for admission in admissions),
        reasons=reasons,
        reason=next((admission.reason for admission in admissions if admission.reason != Reason.HIT), Reason.HIT),
        num_common_tokens=sum(admission.num_common_tokens for admission in admissions),
        saved_seconds=sum(admission.saved_seconds for admission in admissions),
        seconds_ago=min(admission.seconds_ago for admission in admissions),
    )
