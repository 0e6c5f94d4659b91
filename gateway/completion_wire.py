"""The bytes of completions in OpenAI's shapes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson

from gateway.chat_wire import open_object, usage_of
from gateway.errors import Problem
from gateway.logprobs import Entry
from gateway.sse import COMMENT_PING, DONE, data
from gateway.wire import AnswerEnd, AnswerHead


class CompletionWire:
    """Prints one answer.

    Args:
        head: of the answer.
        echo: stands before its text.
        include_usage: whether a stream ends with a chunk that counts.
    """

    ping = COMMENT_PING

    def __init__(self, head: AnswerHead, *, echo: str, include_usage: bool) -> None:
        self._head = head
        self._echo = echo
        self._include_usage = include_usage
        self._start = open_object(head, "text_completion")
        self._text = b"data: " + self._start + b'"choices":[{"index":0,"text":'
        self._text_end = b',"logprobs":null,"finish_reason":null}]' + (b',"usage":null' if include_usage else b"")

    def whole(self, text: str, end: AnswerEnd) -> bytes:
        """Print the answer in one piece."""
        usage = usage_of(self._head.admission, end.num_tokens)
        return self._body(
            choices=[_choice(self._echo + text, end.finish_reason)], usage=usage, **self._head.diagnostics
        )

    def opening(self) -> bytes:
        """Nothing: a client that times its first chunk shall time a token."""
        return b""

    def first(self) -> bytes:
        """Give the prompt back, if that was asked for."""
        return self.text(self._echo, None) if self._echo else b""

    def text(self, text: str, logprobs: Sequence[Entry] | None) -> bytes:  # noqa: ARG002 -- it has none
        """Give more text."""
        return self._text + orjson.dumps(text) + self._text_end + b"}\n\n"

    def end(self, end: AnswerEnd) -> bytes:
        """Say why the answer ends, with diagnostics; then count, in a chunk without choices."""
        null_usage = {"usage": None} if self._include_usage else {}
        frames = data(self._body(choices=[_choice("", end.finish_reason)], **self._head.diagnostics, **null_usage))
        if self._include_usage:
            frames += data(self._body(choices=[], usage=usage_of(self._head.admission, end.num_tokens)))
        return frames + DONE

    def failure(self, problem: Problem) -> bytes:
        """Give the error."""
        return data(problem.body)

    def _body(self, **fields: Any) -> bytes:
        return self._start + orjson.dumps(fields)[1:]


def _choice(text: str, reason: str) -> dict[str, Any]:
    return {"index": 0, "text": text, "logprobs": None, "finish_reason": reason}
