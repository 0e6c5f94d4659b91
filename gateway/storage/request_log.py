"""The request log: rows wait in memory, off the hot path, and one task writes them in batches.

What a crash can lose is what waits: at most one flush interval of rows while the database keeps up, and never more than
the queue holds. When it is full the newest rows are dropped, and counted.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import orjson
from sqlalchemy import insert
from sqlalchemy.engine import Compiled
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.errors import StorageUnavailableError
from gateway.request_entry import RequestEntry
from gateway.storage.database import Database
from gateway.storage.ending import end_tasks
from gateway.storage.history import add_to_hours
from gateway.storage.minutes import Minutes, add_to_minutes
from gateway.storage.retention import Retention, prune
from gateway.storage.tables import REQUESTS

logger = logging.getLogger(__name__)

FLUSH_SECONDS = 0.5
MAX_WAITING_ROWS = 20_000
MAX_WAITING_CHARS = 64_000_000
"""Of stored content; beyond it rows are kept without."""
_BATCH_ROWS = 500
_PRUNE_SECONDS = 60.0
_MAX_MODEL_CHARS = 200


class RequestLog:
    """The only writer of the request log and of the sums by hour and minute.

    Attributes:
        minutes: takes what follows from no row.
        num_written: rows so far.
        num_dropped: rows that were never written.
        keeps_content: whether bodies and answers may be recorded.
        retention: what is kept; another one is in force from the next look on.
    """

    def __init__(
        self,
        database: Database,
        retention: Retention,
        *,
        keeps_content: bool = False,
        max_waiting_rows: int = MAX_WAITING_ROWS,
        max_waiting_chars: int = MAX_WAITING_CHARS,
        flush_seconds: float = FLUSH_SECONDS,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.num_written = 0
        self.num_dropped = 0
        self.keeps_content = keeps_content
        self.minutes = Minutes(database, clock)
        self._database = database
        self.retention = retention
        self._max_waiting_rows = max_waiting_rows
        self._max_waiting_chars = max_waiting_chars
        self._flush_seconds = flush_seconds
        self._clock = clock
        self._waiting: deque[RequestEntry] = deque()
        self._waiting_chars = 0
        self._statement: Compiled | None = None
        self._flushing = asyncio.Lock()
        self._stopping = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def num_waiting(self) -> int:
        """Rows that are not written yet."""
        return len(self._waiting)

    def record(self, entry: RequestEntry) -> None:
        """Queue a row. Waits for nothing and never fails."""
        if len(self._waiting) >= self._max_waiting_rows:
            self.num_dropped += 1
            return
        if self._waiting_chars + entry.num_chars > self._max_waiting_chars:
            entry.request_body = entry.answer_text = None
        self._waiting.append(entry)
        self._waiting_chars += entry.num_chars

    def start(self) -> None:
        """Begin to write."""
        self._task = asyncio.create_task(self._write_on())

    async def stop(self) -> None:
        """Write what waits, if the database takes it, and stop."""
        if self._task is not None:
            self._stopping.set()
            await end_tasks([self._task])
            self._task = None
        with suppress(StorageUnavailableError):
            await self.flush()
        if self._waiting:
            logger.warning("%d rows of the request log are lost: the database does not answer", len(self._waiting))

    async def flush(self) -> None:
        """Write everything that waits now.

        Raises: StorageUnavailableError: the rest waits on.
        """
        async with self._flushing:
            for _ in range(-(-len(self._waiting) // _BATCH_ROWS)):
                await self._write_batch()
            if self.minutes.num_waiting:
                await self._commit([])

    async def _write_on(self) -> None:
        prune_at, is_up = 0.0, True
        while not self._stopping.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(self._flush_seconds):
                    await self._stopping.wait()
            try:
                await self.flush()
                now = self._clock()
                if now >= prune_at:
                    has_more = await prune(self._database, self.retention, now)
                    prune_at = now if has_more else now + _PRUNE_SECONDS
                is_up = True
            except StorageUnavailableError as error:
                if is_up:
                    logger.warning("%s; the request log waits in memory: %s", error, error.cause)
                is_up = False
            except Exception:  # the only writer must not end
                logger.exception("writing the request log failed")

    async def _write_batch(self) -> None:
        batch = [self._waiting[index] for index in range(min(_BATCH_ROWS, len(self._waiting)))]
        refused = await self._write(batch)
        if refused:
            logger.error("%d rows of the request log were refused and are dropped", len(refused), exc_info=refused[0])

    async def _write(self, batch: Sequence[RequestEntry]) -> list[Exception]:
        """Write the rows that wait longest; those at fault are found by halving, and dropped.

        Kept, they would be in the way of all others for ever.

        Returns: why, for each row that was dropped.
        """
        refused: list[Exception] = []
        try:
            await self._commit(batch)
            self.num_written += len(batch)
        except StorageUnavailableError:
            raise
        except Exception as error:  # whatever it is, it is a row's and not the database's
            if len(batch) > 1:
                middle = len(batch) // 2
                return await self._write(batch[:middle]) + await self._write(batch[middle:])
            self.num_dropped += 1
            refused.append(error)
        for entry in batch:
            self._waiting.popleft()
            self._waiting_chars -= entry.num_chars
        return refused

    async def _commit(self, batch: Sequence[RequestEntry]) -> None:
        """Write rows and all that is summed of them in one transaction: no sum differs from its rows."""
        rows = [_row(entry) for entry in batch]
        with self.minutes.taken() as added:
            async with self._database.write() as connection:
                if rows:
                    await self._insert(connection, rows)
                await add_to_hours(connection, batch)
                await add_to_minutes(connection, batch, added)

    async def _insert(self, connection: AsyncConnection, rows: Sequence[dict[str, object]]) -> None:
        """Hand rows to the driver as they are: converted column by column a row takes twice as long."""
        if self._statement is None:
            self._statement = insert(REQUESTS).compile(dialect=connection.dialect, column_keys=list(rows[0]))
        order: Sequence[str] | None = getattr(self._statement, "positiontup", None)
        parameters: Any = rows if order is None else [tuple([row[name] for name in order]) for row in rows]
        await connection.exec_driver_sql(str(self._statement), parameters)


def _row(entry: RequestEntry) -> dict[str, object]:
    """Give a row in the driver's own values."""
    return {
        "request_id": entry.request_id,
        "completion_id": entry.completion_id,
        "created_at": entry.created_at,
        "tenant_id": entry.tenant_id,
        "key_id": entry.key_id,
        "prompt_id": entry.prompt_id,
        "model": _storable(entry.model[:_MAX_MODEL_CHARS]),
        "endpoint": entry.endpoint,
        "status": entry.status,
        "error": entry.error,
        "finish_reason": entry.finish_reason,
        "is_stream": entry.is_stream,
        "prepare_seconds": entry.prepare_seconds,
        "queue_seconds": entry.queue_seconds,
        "first_token_seconds": entry.first_token_seconds,
        "total_seconds": entry.total_seconds,
        "num_prompt_tokens": entry.num_prompt_tokens,
        "num_cached_tokens": entry.num_cached_tokens,
        "num_output_tokens": entry.num_output_tokens,
        "saved_seconds": entry.saved_seconds,
        "reasons": _json(None if entry.reasons is None else dict(entry.reasons)),
        "rules": _json(None if entry.rules is None else list(entry.rules)),
        "context_management": _json(None if entry.context is None else entry.context.recorded()),
        "request_body": _storable(entry.request_body),
        "answer_text": _storable(entry.answer_text),
    }


def _json(value: Mapping[str, Any] | list[str] | None) -> str | None:
    return None if value is None else orjson.dumps(value).decode()


def _storable(text: str | None) -> str | None:
    """PostgreSQL's text holds every character but NUL."""
    return None if text is None else text.replace("\0", "\N{REPLACEMENT CHARACTER}")
