"""Parts of one kernel call side by side, each a compiled function that lets go of the interpreter lock.

As many as torch has threads, the caller's included, and none of numba's own: its pools spin or sleep beside torch's, and
a parallel region that finds a core taken waits for milliseconds. These threads sleep when they have nothing to do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache


def run(parts: Sequence[Callable[[], None]]) -> None:
    """Call all parts, the first one here; returns when all have returned."""
    others = [_pool(len(parts) - 1).submit(part) for part in parts[1:]]
    parts[0]()
    for other in others:
        other.result()


@cache
def _pool(num_threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(num_threads, thread_name_prefix="kernels")
