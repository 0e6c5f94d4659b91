"""The bytes of answers in the shapes of Anthropic's messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson

from gateway.answer_pieces import AnswerEnd, Piece, Text, WholeAnswer
from gateway.error_shapes import anthropic_error
from gateway.errors import Problem
from gateway.wire import AnswerHead

_DELTA = (
    b'event: content_block_delta\ndata: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":'
)


class MessagesWire:
    """Prints one answer."""

    ping = b'event: ping\ndata: {"type": "ping"}\n\n'

    def __init__(self, head: AnswerHead) -> None:
        self._head = head

    def whole(self, answers: Sequence[WholeAnswer]) -> bytes:
        """Print the only answer; without any text it has no content."""
        (answer,) = answers
        content = [{"type": "text", "text": answer.text}] if answer.text else []
        return orjson.dumps(self._message(content, answer.end.num_tokens, **_reason(answer.end)))

    def opening(self) -> bytes:
        """Begin the message, which tells of the prompt, and its one text; the ping says that it goes on."""
        message = self._message([], 0, stop_reason=None, stop_sequence=None)
        block = {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
        return _event({"type": "message_start", "message": message}) + _event(block) + self.ping

    def first(self, choice: int) -> bytes:  # noqa: ARG002 -- there is one
        """Nothing: all of it is out."""
        return b""

    def piece(self, choice: int, piece: Piece) -> bytes:  # noqa: ARG002 -- there is one
        """Give more text."""
        match piece:
            case Text(text):
                return _DELTA + orjson.dumps(text) + b"}}\n\n"
            case _:
                raise NotImplementedError

    def end(self, choice: int, end: AnswerEnd) -> bytes:  # noqa: ARG002 -- there is one
        """End the text, then say why and count."""
        delta = {"type": "message_delta", "delta": _reason(end), "usage": self._usage(end.num_tokens)}
        return _event({"type": "content_block_stop", "index": 0}) + _event(delta)

    def close(self, num_tokens: int) -> bytes:  # noqa: ARG002 -- its end has counted
        """End the message."""
        return _event({"type": "message_stop"})

    def failure(self, problem: Problem) -> bytes:
        """Give the error."""
        return b"event: error\ndata: " + anthropic_error(problem) + b"\n\n"

    def _message(self, content: list[dict[str, Any]], num_tokens: int, **reason: str | None) -> dict[str, Any]:
        head = self._head
        start = {"id": head.completion_id, "type": "message", "role": "assistant", "model": head.model}
        usage = self._usage(num_tokens)
        written = {"ephemeral_5m_input_tokens": usage["cache_creation_input_tokens"], "ephemeral_1h_input_tokens": 0}
        usage |= {"cache_creation": written, "service_tier": "standard"}
        return {**start, "content": content, **reason, "usage": usage, **head.diagnostics}

    def _usage(self, num_tokens: int) -> dict[str, Any]:
        """Count: the three kinds of input are the whole prompt, and what is written to the cache are full blocks."""
        admission, written = self._head.admission, self._head.num_written_tokens
        return {
            "input_tokens": admission.num_prompt_tokens - admission.num_cached_tokens - written,
            "cache_creation_input_tokens": written,
            "cache_read_input_tokens": admission.num_cached_tokens,
            "output_tokens": num_tokens,
        }


def _reason(end: AnswerEnd) -> dict[str, str | None]:
    if end.stop is not None:
        return {"stop_reason": "stop_sequence", "stop_sequence": end.stop}
    return {"stop_reason": "max_tokens" if end.finish_reason == "length" else "end_turn", "stop_sequence": None}


def _event(event: dict[str, Any]) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (event["type"].encode(), orjson.dumps(event))
