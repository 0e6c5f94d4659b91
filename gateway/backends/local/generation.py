"""One running generation: a mailbox between the worker's messages and the one reader of its answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field

from gateway.backends.base import Admission, BackendError, TokenBatch, TokenLogprobs


@dataclass(slots=True)
class _Arrived:
    """Of one answer, not read yet."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] | None = None
    finish_reason: str | None = None


class LocalGeneration:
    """What the worker says of one request; tokens gather while the reader is busy elsewhere."""

    def __init__(self, *, num_choices: int, abort: Callable[[], None], end: Callable[[int], None]) -> None:
        """Args: num_choices: answers; abort: ends all of them in the worker; end: one."""
        self._abort = abort
        self._end = end
        self._admitted: asyncio.Future[Admission] = asyncio.get_running_loop().create_future()
        self._running = set(range(num_choices))
        self._arrived: dict[int, _Arrived] = {}
        self._error: BackendError | None = None
        self._news = asyncio.Event()
        self.prompt_logprobs: tuple[list[TokenLogprobs]] = ([],)
        """Of the one prompt's tokens but the first."""

    @property
    def admission(self) -> Admission:
        """What was reused. Raises: asyncio.InvalidStateError: not admitted yet."""
        return self._admitted.result()

    @property
    def is_over(self) -> bool:
        """Whether no answer has anything more to come."""
        return not self._running

    async def wait_admitted(self) -> None:
        """Wait for admission. Raises: BackendError: it ended before."""
        await asyncio.shield(self._admitted)

    async def __aiter__(self) -> AsyncIterator[TokenBatch]:
        """Yield what has arrived, in one batch an answer, each time something has."""
        while self._arrived or not self.is_over:
            if not self._arrived:
                await self._news.wait()
            self._news.clear()
            while self._arrived:
                choice = next(iter(self._arrived))
                arrived = self._arrived.pop(choice)
                yield TokenBatch(arrived.token_ids, arrived.finish_reason, arrived.logprobs, choice)
            if self._error is not None:
                raise self._error

    def end(self, choice: int) -> None:
        """Stop one answer; the others go on."""
        self._arrived.pop(choice, None)
        if choice in self._running:
            self._running.remove(choice)
            self._end(choice)

    def abort(self) -> None:
        """Stop it and free its blocks; safe at any time and more than once."""
        self._abort()

    def admit(self, admission: Admission) -> None:
        """Enter what was reused and let the waiter go on."""
        if not self._admitted.done():
            self._admitted.set_result(admission)

    def tell_prompt(self, start: int, logprobs: Sequence[TokenLogprobs]) -> None:
        """Enter what is told of the prompt from there on, in place of what was told before."""
        self.prompt_logprobs[0][start:] = logprobs

    def push(
        self,
        choice: int,
        token_ids: Sequence[int],
        finish_reason: str | None,
        logprobs: Sequence[TokenLogprobs] | None = None,
    ) -> None:
        """Enter new tokens of an answer, all of a request's with log probabilities or none."""
        if choice not in self._running:
            return  # ended; the worker had not heard of it yet
        arrived = self._arrived.setdefault(choice, _Arrived())
        arrived.token_ids.extend(token_ids)
        if logprobs is not None:
            arrived.logprobs = [*(arrived.logprobs or ()), *logprobs]
        arrived.finish_reason = finish_reason
        if finish_reason is not None:
            self._running.remove(choice)
        self._news.set()

    def fail(self, error: BackendError) -> None:
        """End it with an error, wherever its reader waits."""
        self._error = error
        self._news.set()
        if not self._admitted.done():
            self._admitted.set_exception(error)
            self._admitted.exception()  # read once, so that an abandoned waiter is not reported as a bug
