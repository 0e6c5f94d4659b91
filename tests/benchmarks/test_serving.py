"""What the serving benchmark says, without running a side: the words, the figures, the table."""

from __future__ import annotations

import pytest

from benchmarks.loads import LOADS
from benchmarks.peers import SideMissingError
from benchmarks.peers.child import BatchEngine, closed_loop
from benchmarks.serving import _run
from benchmarks.serving_table import print_table
from benchmarks.timings import Figures, RequestTiming, figures, quantile


@pytest.mark.parametrize("name", list(LOADS))
def test_chats_are_the_same_every_time_and_new_in_every_round(name):
    load = LOADS[name]
    chats = load.chats(0)
    assert chats == load.chats(0)
    assert len({chat.user for chat in chats}) == len(chats) == load.num_chats
    assert len({chat.system for chat in chats}) == (1 if load.shared else load.num_chats)
    assert {chat.system for chat in chats}.isdisjoint(chat.system for chat in load.chats(1))
    assert {len(chat.system.split()) for chat in chats} == {load.system_words}


def test_figures_of_a_run():
    timings = [RequestTiming(ttft=1.0 + i, total=3.0 + i, num_tokens=5, num_prompt_tokens=10) for i in range(4)]
    found = figures(timings, wall=10.0)
    assert (found.tokens_per_second, found.ttft_p50, found.ttft_p99, found.inter_token) == (2.0, 2.5, 4.0, 0.5)


def test_quantile_is_a_value_that_was_seen():
    values = [float(i) for i in range(1, 201)]
    assert (quantile(values, 0.99), quantile(values, 0.5), quantile(values[:1], 0.99)) == (198.0, 100.0, 1.0)


class FakeEngine(BatchEngine):
    """One token for every live prompt in a step."""

    def __init__(self) -> None:
        self.left: dict[int, int] = {}
        self.most_live = 0

    def add(self, index: int, prompt: str, max_tokens: int) -> int:
        self.left[index] = max_tokens
        self.most_live = max(self.most_live, len(self.left))
        return len(prompt)

    def step(self) -> dict[int, int]:
        new = dict.fromkeys(self.left, 1)
        self.left = {index: left - 1 for index, left in self.left.items() if left > 1}
        return new


def test_closed_loop_keeps_so_many_running_and_ends_all():
    engine = FakeEngine()
    timings = closed_loop(engine, ["ab"] * 7, concurrency=3, max_tokens=4)
    assert engine.most_live == 3
    assert [(timing.num_tokens, timing.num_prompt_tokens) for timing in timings] == [(4, 2)] * 7


class FakeSide:
    def __init__(self, name: str, result: Figures | Exception) -> None:
        self.name, self.result = name, result

    def run(self, load, round_number):
        if isinstance(self.result, Exception):
            raise self.result
        return self.result


def test_table_has_every_side_its_ratios_and_why_one_is_missing(capsys):
    report = {"machine": "toaster", "serve_flags": [], "loads": {}}
    assert _run(FakeSide("prefixgate", Figures(100.0, wall=4.0, ttft_p99=1.0)), LOADS["shared"], report)
    assert _run(FakeSide("openvino", Figures(60.0, wall=10.0, ttft_p99=2.0)), LOADS["shared"], report)
    assert _run(FakeSide("llama.cpp", SideMissingError("not installed: give --llama-server")), LOADS["shared"], report)
    assert not _run(FakeSide("transformers", RuntimeError("wanted 64 tokens")), LOADS["shared"], report)
    capsys.readouterr()
    print_table(report)
    lines = capsys.readouterr().out.splitlines()
    verdicts = {
        line.split(":")[1].split(" /")[0].strip(): line.split()[-1]
        for line in lines
        if "wanted <= " in line or "wanted >= " in line
    }
    assert verdicts == {"wall": "holds", "ttft_p99": "MISSES", "tokens_per_second": "MISSES"}
    assert any(line.startswith("llama.cpp") and "not installed" in line for line in lines)
    assert any(line.startswith("transformers") and "wanted 64 tokens" in line for line in lines)
