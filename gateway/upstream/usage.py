"""Reads what an upstream's answer tells of itself, from bytes that pass by in whatever pieces; changes none of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import orjson

from gateway.upstream import told
from gateway.upstream.spoken import SpokenTurn

MAX_LINE_BYTES = 1_000_000
"""Of an event that is not complete yet; longer ones are passed on and not read."""

_TELLING = re.compile(
    rb'"usage"\s*:\s*\{|"(?:finish|stop)_reason"\s*:\s*"'
    rb'|"type"\s*:\s*"(?:message_stop|response\.(?:completed|incomplete|failed))"'
)
_DONE = re.compile(rb"data: ?\[DONE\](\n\n|\r\n\r\n|\r\r)\Z")
_MAX_DONE_BYTES = 16


class AnswerReader:
    """What one answer told so far.

    Attributes:
        completion_id: the upstream's name for it; empty: not told.
        finish_reason: None: not told.
        num_prompt_tokens: None: not told, and so the next two.
        num_cached_tokens: the most that any usage reported, and no more than its prompt has.
        num_output_tokens: of the last usage.
        turn: the first choice, where it is kept.
    """

    def __init__(self, *, keeps_message: bool) -> None:
        """Begin to read.

        Args:
            keeps_message: whether what is said is collected; then every event is parsed.
        """
        self.completion_id = ""
        self.finish_reason: str | None = None
        self.num_prompt_tokens: int | None = None
        self.num_cached_tokens: int | None = None
        self.num_output_tokens: int | None = None
        self.turn = SpokenTurn()
        self._keeps_message = keeps_message
        self._is_last_read = False
        self._rest = b""
        self._skips_line = False
        self._last_bytes = b""

    @property
    def is_done(self) -> bool:
        """Whether the bytes so far end with the event that ends a stream; clients leave on it."""
        return _DONE.search(self._last_bytes) is not None or (self._is_last_read and self.ends_on_a_border)

    @property
    def ends_on_a_border(self) -> bool:
        """Whether the bytes so far end with a whole line."""
        return not self._rest and not self._skips_line

    def read_body(self, body: bytes) -> None:
        """Read an answer in one piece; what is no JSON tells nothing."""
        self._read(body, told.said_as_a_whole)

    def feed(self, piece: bytes) -> None:
        """Read the next bytes of an event stream."""
        self._last_bytes = (self._last_bytes + piece[-_MAX_DONE_BYTES:])[-_MAX_DONE_BYTES:]
        end = max(piece.rfind(b"\n"), piece.rfind(b"\r")) + 1
        if not end:
            self._keep(piece)
            return
        whole, skips_first = self._rest + piece[:end], self._skips_line
        self._rest, self._skips_line = b"", False
        self._keep(piece[end:])
        if not self._keeps_message and self.completion_id and _TELLING.search(whole) is None:
            return  # nearly always
        for line in whole.splitlines()[skips_first:]:
            if not line.startswith(b"data:"):
                continue
            if not self.completion_id or _TELLING.search(line):
                self._read(line[5:], told.said_in_piece)
            elif self._keeps_message and (event := _object(line[5:])):
                for part in told.said_in_piece(event):
                    self.turn.add(part)

    def _keep(self, piece: bytes) -> None:
        if self._skips_line or len(self._rest) + len(piece) > MAX_LINE_BYTES:
            self._rest, self._skips_line = b"", True
        else:
            self._rest += piece

    def _read(self, text: bytes, said: Callable[[Mapping[str, Any]], Iterator[Mapping[str, Any]]]) -> None:
        answer = _object(text)
        if not answer:
            return
        self._is_last_read = self._is_last_read or told.is_last(answer)
        self.completion_id = self.completion_id or told.completion_id(answer)
        self.finish_reason = told.finish_reason(answer) or self.finish_reason
        if self._keeps_message:
            for part in said(answer):
                self.turn.add(part)
        usage = told.usage(answer)
        if usage is not None:
            self._read_usage(usage)

    def _read_usage(self, usage: told.Usage) -> None:
        self.num_prompt_tokens = self.num_prompt_tokens if usage.prompt is None else usage.prompt
        self.num_output_tokens = self.num_output_tokens if usage.output is None else usage.output
        if usage.cached is not None:
            most = usage.cached if self.num_prompt_tokens is None else min(usage.cached, self.num_prompt_tokens)
            self.num_cached_tokens = max(most, self.num_cached_tokens or 0)


def _object(text: bytes) -> dict[str, Any]:
    """Read a JSON object; empty: it is none."""
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:  # [DONE], or nothing that we know
        return {}
    return value if isinstance(value, dict) else {}
