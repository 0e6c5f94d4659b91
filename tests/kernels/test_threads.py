"""Parts side by side: all run, once, and what one raises reaches the caller."""

from __future__ import annotations

import threading
from functools import partial

import pytest

from kernels.cpu.threads import run


def test_every_part_runs_once_and_is_over_when_run_returns():
    for size in (1, 2, 3, 2, 1):
        for _ in range(200):
            seen: list[int] = []
            run([partial(seen.append, number) for number in range(size)])
            assert sorted(seen) == list(range(size))


def test_several_callers_take_turns():
    counts = [0] * 4

    def call(caller: int) -> None:
        for _ in range(100):
            run([lambda: counts.__setitem__(caller, counts[caller] + 1)] * 1 + [lambda: None])

    callers = [threading.Thread(target=call, args=(caller,)) for caller in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(60)
    assert counts == [100] * 4


@pytest.mark.parametrize("failing", [0, 1])
def test_an_error_reaches_the_caller_and_the_next_call_works(failing):
    def fail() -> None:
        raise RuntimeError("broken part")

    parts = [lambda: None, lambda: None]
    parts[failing] = fail
    with pytest.raises(RuntimeError, match="broken part"):
        run(parts)
    seen: list[int] = []
    run([lambda: seen.append(0), lambda: seen.append(1)])
    assert sorted(seen) == [0, 1]
