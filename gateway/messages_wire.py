"""The bytes of answers in the shapes of Anthropic's messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson

from gateway.answer_pieces import AnswerEnd, CallArguments, CallStart, Piece, Text, Thought, WholeAnswer
from gateway.error_shapes import anthropic_error
from gateway.errors import Problem
from gateway.wire import AnswerHead

_DELTA = (
    b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,"delta":{"type":"%b","%b":%b}}\n\n'
)


_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


class MessagesWire:
    """Prints one answer: text, thoughts and calls are blocks, one behind the other.

    Args:
        head: of the answer.
        shows_thoughts: the client asked for thoughts; else they are left out.
    """

    ping = b'event: ping\ndata: {"type": "ping"}\n\n'

    def __init__(self, head: AnswerHead, *, shows_thoughts: bool = False) -> None:
        self._head = head
        self._shows_thoughts = shows_thoughts
        self._num_blocks = 0
        self._open: str | None = None
        """The type of the block that is being printed."""

    def whole(self, answers: Sequence[WholeAnswer]) -> bytes:
        """Print the only answer; without anything said it has no content."""
        (answer,) = answers
        content: list[dict[str, Any]] = []
        if answer.thought and self._shows_thoughts:
            content.append({"type": "thinking", "thinking": answer.thought, "signature": ""})
        content += _text(answer.text.removesuffix(answer.late_text))
        content += [_tool_use(call.call_id, call.name, call.arguments) for call in answer.calls]
        content += _text(answer.late_text)
        message = self._message(content, answer.end.num_tokens, **_reason(answer.end))
        return orjson.dumps({**message, **self._head.context})

    def opening(self) -> bytes:
        """Begin the message, which tells of the prompt; the ping says that it goes on."""
        message = self._message([], 0, stop_reason=None, stop_sequence=None)
        return _event({"type": "message_start", "message": message}) + self.ping

    def first(self, choice: int, said: Piece | AnswerEnd) -> bytes:  # noqa: ARG002 -- there is one, of any kind
        """Nothing: all of it is out."""
        return b""

    def piece(self, choice: int, piece: Piece) -> bytes:  # noqa: ARG002 -- there is one
        """Give more of a block, or the beginning of the next one."""
        match piece:
            case Text(text):
                return self._in_block({"type": "text", "text": ""}) + self._delta(b"text_delta", b"text", text)
            case Thought(text):
                if not self._shows_thoughts:
                    return b""
                block = {"type": "thinking", "thinking": "", "signature": ""}
                return self._in_block(block) + self._delta(b"thinking_delta", b"thinking", text)
            case CallStart(_, call_id, name):
                return self._end_block() + self._in_block(_tool_use(call_id, name, "{}"))
            case CallArguments(_, fragment):
                return self._delta(b"input_json_delta", b"partial_json", fragment)

    def end(self, choice: int, end: AnswerEnd) -> bytes:  # noqa: ARG002 -- there is one
        """End the last block, then say why and count."""
        delta: dict[str, Any] = {"type": "message_delta", "delta": _reason(end), "usage": self._usage(end.num_tokens)}
        delta |= self._head.context
        return self._end_block() + _event(delta)

    def close(self, num_tokens: int) -> bytes:  # noqa: ARG002 -- its end has counted
        """End the message."""
        return _event({"type": "message_stop"})

    def failure(self, problem: Problem) -> bytes:
        """Give the error."""
        return b"event: error\ndata: " + anthropic_error(problem) + b"\n\n"

    def _in_block(self, block: dict[str, Any]) -> bytes:
        """Begin a block, unless one of its type is open."""
        if self._open == block["type"]:
            return b""
        ended = self._end_block()
        self._open = block["type"]
        self._num_blocks += 1
        return ended + _event({"type": "content_block_start", "index": self._num_blocks - 1, "content_block": block})

    def _end_block(self) -> bytes:
        if self._open is None:
            return b""
        self._open = None
        return _event({"type": "content_block_stop", "index": self._num_blocks - 1})

    def _delta(self, kind: bytes, name: bytes, text: str) -> bytes:
        return _DELTA % (self._num_blocks - 1, kind, name, orjson.dumps(text))

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
    return {"stop_reason": _REASONS[end.finish_reason], "stop_sequence": None}


def _text(text: str) -> list[dict[str, Any]]:
    return [{"type": "text", "text": text}] if text else []


def _tool_use(call_id: str, name: str, arguments: str) -> dict[str, Any]:
    """Print a call; its arguments stay as the model wrote them."""
    return {"type": "tool_use", "id": call_id, "name": name, "input": orjson.Fragment(arguments)}


def _event(event: dict[str, Any]) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (event["type"].encode(), orjson.dumps(event))
