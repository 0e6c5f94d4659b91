"""The bytes of completions in OpenAI's shapes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson

from gateway.answer_pieces import AnswerEnd, Piece, Text, WholeAnswer
from gateway.chat_wire import open_object, usage_of
from gateway.errors import Problem
from gateway.sse import COMMENT_PING, DONE, data
from gateway.wire import AnswerHead


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
        self._text_end = b',"logprobs":null,"finish_reason":null}]' + (b',"usage":null' if include_usage else b"")

    def whole(self, answers: Sequence[WholeAnswer]) -> bytes:
        """Print the answers at once."""
        usage = usage_of(self._head.admission, sum(answer.end.num_tokens for answer in answers))
        choices = [
            _choice(number, self._echo + answer.text, answer.end.finish_reason) for number, answer in enumerate(answers)
        ]
        return self._body(choices=choices, usage=usage, **self._head.diagnostics)

    def opening(self) -> bytes:
        """Nothing: a client that times its first chunk shall time a token."""
        return b""

    def first(self, choice: int) -> bytes:
        """Give the prompt back, if that was asked for."""
        return self._text(choice, self._echo) if self._echo else b""

    def piece(self, choice: int, piece: Piece) -> bytes:
        """Give more text; there is nothing else in a completion."""
        return self._text(choice, piece.text) if isinstance(piece, Text) else b""

    def end(self, choice: int, end: AnswerEnd) -> bytes:
        """Say why an answer ends, with diagnostics."""
        null_usage = {"usage": None} if self._include_usage else {}
        choices = [_choice(choice, "", end.finish_reason)]
        return data(self._body(choices=choices, **self._head.diagnostics, **null_usage))

    def close(self, num_tokens: int) -> bytes:
        """Count, in a chunk without choices."""
        if not self._include_usage:
            return DONE
        return data(self._body(choices=[], usage=usage_of(self._head.admission, num_tokens))) + DONE

    def failure(self, problem: Problem) -> bytes:
        """Give the error."""
        return data(problem.body)

    def _text(self, choice: int, text: str) -> bytes:
        start = b'data: %b"choices":[{"index":%d,"text":' % (self._start, choice)
        return start + orjson.dumps(text) + self._text_end + b"}\n\n"

    def _body(self, **fields: Any) -> bytes:
        return self._start + orjson.dumps(fields)[1:]


def _choice(number: int, text: str, reason: str) -> dict[str, Any]:
    return {"index": number, "text": text, "logprobs": None, "finish_reason": reason}
