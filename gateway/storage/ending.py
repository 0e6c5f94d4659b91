"""Ending tasks that use the database: what is under way ends first.

A transaction that is cut off in the middle may leave its driver's thread behind, which then speaks to a loop that is gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection

PATIENCE_SECONDS = 3.0
"""A database that does not answer must not hold up the end."""


async def end_tasks(tasks: Collection[asyncio.Task[None]]) -> None:
    """Wait for tasks that were told to end; cancel those that do not in time."""
    if not tasks:
        return
    _, running = await asyncio.wait(tasks, timeout=PATIENCE_SECONDS)
    for task in running:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
