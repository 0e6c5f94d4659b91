from __future__ import annotations

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule

from gateway.conversation import Message
from gateway.normalize.memory import ENTRY_BYTES, TurnMemory, size_of
from gateway.normalize.recollection import ReturnedTurn

MAX_BYTES = 40 * ENTRY_BYTES
SCOPES = st.sampled_from("abc")
KEYS = st.integers(0, 30).map(lambda number: number.to_bytes(2, "little"))


class BoundedMemory(RuleBasedStateMachine):
    """Against a dict without bounds: what is found is what was kept last, or nothing."""

    values = Bundle("values")

    def __init__(self) -> None:
        super().__init__()
        self.memory = TurnMemory(max_bytes=MAX_BYTES)
        self.kept: dict[tuple[str, bytes], object] = {}

    @rule(target=values, num_chars=st.integers(0, 3 * ENTRY_BYTES), letter=st.characters())
    def value(self, num_chars: int, letter: str) -> str:
        return letter * num_chars

    @rule(scope=SCOPES, key=KEYS, value=values)
    def keep(self, scope: str, key: bytes, value: str) -> None:
        self.memory.keep(scope, key, value)
        self.kept[scope, key] = value
        assert self.memory.find(scope, key) in (None, value)

    @rule(scope=SCOPES, key=KEYS, value=values)
    def keep_first(self, scope: str, key: bytes, value: str) -> None:
        before = self.memory.find(scope, key)
        found = self.memory.keep_first(scope, key, value)
        assert found == (value if before is None else before)
        if before is None:
            self.kept[scope, key] = value

    @rule(scope=SCOPES, key=KEYS)
    def find(self, scope: str, key: bytes) -> None:
        assert self.memory.find(scope, key) in (None, self.kept.get((scope, key)))

    @invariant()
    def is_bounded(self) -> None:
        assert self.memory.num_bytes <= MAX_BYTES
        assert self.memory.num_entries <= MAX_BYTES // ENTRY_BYTES

    @invariant()
    def bytes_are_those_of_the_entries(self) -> None:
        entries = [(scope, number.to_bytes(2, "little")) for scope in "abc" for number in range(31)]
        held = [value for scope, key in entries if (value := self.memory.find(scope, key)) is not None]
        assert self.memory.num_bytes == sum(ENTRY_BYTES + size_of(value) for value in held)
        assert self.memory.num_entries == len(held)
        for scope in "abc":
            has_any = any(self.memory.find(scope, key) is not None for owner, key in entries if owner == scope)
            assert self.memory.has(scope) == has_any


TestBoundedMemory = BoundedMemory.TestCase
TestBoundedMemory.settings = settings(max_examples=40, stateful_step_count=60, deadline=None)


def test_a_scope_that_floods_the_memory_pushes_out_its_own_only() -> None:
    memory = TurnMemory(max_bytes=MAX_BYTES)
    for number in range(5):
        memory.keep("quiet", bytes([number]), "kept")
    for number in range(1000):
        memory.keep("loud", number.to_bytes(2, "little"), "x" * ENTRY_BYTES)
    assert [memory.find("quiet", bytes([number])) for number in range(5)] == ["kept"] * 5
    assert memory.find("loud", (999).to_bytes(2, "little")) is not None


def test_what_was_used_least_recently_goes_first() -> None:
    memory = TurnMemory(max_bytes=16 * (ENTRY_BYTES + size_of("v")))
    for number in range(16):
        memory.keep("a", bytes([number]), "v")
    memory.find("a", bytes([0]))
    memory.keep("a", bytes([16]), "v")
    assert [number for number in range(17) if memory.find("a", bytes([number])) is None] == [1]


def test_a_huge_value_is_not_kept_and_pushes_nothing_out() -> None:
    memory = TurnMemory(max_bytes=MAX_BYTES)
    memory.keep("a", b"small", "v")
    memory.keep("a", b"huge", "v" * MAX_BYTES)
    assert memory.find("a", b"small") == "v"
    assert memory.find("a", b"huge") is None


@pytest.mark.parametrize("text", ["", "a" * 100, "é" * 100, "€" * 100, "😀" + "a" * 100])
def test_size_counts_texts_and_tokens_as_they_lie_in_memory(text: str) -> None:
    token_ids = np.zeros(1000, dtype=np.int32)
    turn = ReturnedTurn(Message("assistant", text, {"tool_calls": [{"id": text}]}), token_ids)
    assert size_of(turn) >= 2 * text.__sizeof__() + token_ids.nbytes
