"""One running generation: a mailbox between the worker's messages and the one reader of an answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence

from gateway.backends.base import Admission, BackendError, TokenBatch, TokenLogprobs


class LocalGeneration:
    """What the worker says of one request; tokens gather while the reader is busy elsewhere."""

    def __init__(self, *, abort: Callable[[], None]) -> None:
        self._abort = abort
        self._admitted: asyncio.Future[Admission] = asyncio.get_running_loop().create_future()
        self._tokens: list[int] = []
        self._logprobs: list[TokenLogprobs] | None = None
        self._finish_reason: str | None = None
        self._error: BackendError | None = None
        self._news = asyncio.Event()

    @property
    def admission(self) -> Admission:
        """What was reused. Raises: asyncio.InvalidStateError: not admitted yet."""
        return self._admitted.result()

    async def wait_admitted(self) -> None:
        """Wait for admission. Raises: BackendError: it ended before."""
        await asyncio.shield(self._admitted)

    async def __aiter__(self) -> AsyncIterator[TokenBatch]:
        """Yield what has arrived, in one batch, each time something has."""
        while True:
            await self._news.wait()
            self._news.clear()
            tokens, self._tokens = self._tokens, []
            logprobs, self._logprobs = self._logprobs, None
            reason = self._finish_reason
            if tokens or reason is not None:
                yield TokenBatch(tokens, reason, logprobs)
            if reason is not None:
                return
            if self._error is not None:
                raise self._error

    def abort(self) -> None:
        """Stop it and free its blocks; safe at any time and more than once."""
        self._abort()

    def admit(self, admission: Admission) -> None:
        """Enter what was reused and let the waiter go on."""
        if not self._admitted.done():
            self._admitted.set_result(admission)

    def push(
        self, token_ids: Sequence[int], finish_reason: str | None, logprobs: Sequence[TokenLogprobs] | None = None
    ) -> None:
        """Enter new tokens, all of a request's with log probabilities or none."""
        self._tokens.extend(token_ids)
        if logprobs is not None:
            self._logprobs = [*(self._logprobs or ()), *logprobs]
        self._finish_reason = finish_reason
        self._news.set()

    def fail(self, error: BackendError) -> None:
        """End it with an error, wherever its reader waits."""
        self._error = error
        self._news.set()
        if not self._admitted.done():
            self._admitted.set_exception(error)
            self._admitted.exception()  # read once, so that an abandoned waiter is not reported as a bug
