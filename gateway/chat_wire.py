"""The bytes of chat completions in OpenAI's shapes.

A streamed chunk is a concatenation: all that is equal in every chunk of an answer is printed once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from gateway.backends.base import Admission
from gateway.errors import Problem
from gateway.logprobs import Entry
from gateway.sse import COMMENT_PING, DONE, data
from gateway.wire import AnswerEnd, AnswerHead


class ChatWire:
    """Prints one answer."""

    ping = COMMENT_PING

    def __init__(self, head: AnswerHead, *, include_usage: bool) -> None:
        self._head = head
        self._include_usage = include_usage
        self._start = b"data: " + open_object(head, "chat.completion.chunk")
        self._content = self._start + b'"choices":[{"index":0,"delta":{"content":'
        self._usage_end = b',"usage":null}\n\n' if include_usage else b"}\n\n"
        self._choice_end = b',"finish_reason":null}]' + self._usage_end
        self._content_end = b'},"logprobs":null' + self._choice_end

    def whole(self, text: str, end: AnswerEnd) -> bytes:
        """Print an answer in one piece, diagnostics at its end."""
        message = {"role": "assistant", "content": text, "refusal": None}
        choice = {
            "index": 0,
            "message": message,
            "logprobs": _logprobs(end.logprobs),
            "finish_reason": end.finish_reason,
        }
        usage = usage_of(self._head.admission, end.num_tokens)
        rest = {"choices": [choice], "usage": usage, **self._head.diagnostics}
        return open_object(self._head, "chat.completion") + orjson.dumps(rest)[1:]

    def opening(self) -> bytes:
        """Nothing: a client that times its first chunk shall time a token."""
        return b""

    def first(self) -> bytes:
        """Say who speaks."""
        delta = b'"choices":[{"index":0,"delta":{"role":"assistant","content":"","refusal":null'
        return self._start + delta + self._content_end

    def text(self, text: str, logprobs: Sequence[Entry] | None) -> bytes:
        """Give more text, with the log probabilities of its tokens."""
        start = self._content + orjson.dumps(text)
        if logprobs is None:
            return start + self._content_end
        return start + b'},"logprobs":' + orjson.dumps(_logprobs(logprobs)) + self._choice_end

    def end(self, end: AnswerEnd) -> bytes:
        """Say why the answer ends, with diagnostics; then count, in a chunk without choices."""
        said = orjson.dumps(_logprobs(end.logprobs or None))  # of tokens without text
        reason = end.finish_reason.encode()
        choice = b'"choices":[{"index":0,"delta":{},"logprobs":%b,"finish_reason":"%b"}]' % (said, reason)
        frames = self._start + choice + _more(self._head.diagnostics) + self._usage_end
        if self._include_usage:
            usage = usage_of(self._head.admission, end.num_tokens)
            frames += self._start + b'"choices":[],"usage":' + orjson.dumps(usage) + b"}\n\n"
        return frames + DONE

    def failure(self, problem: Problem) -> bytes:
        """Give the error."""
        return data(problem.body)


def usage_of(admission: Admission, num_output_tokens: int) -> dict[str, Any]:
    """Give the `usage` object."""
    return {
        "prompt_tokens": admission.num_prompt_tokens,
        "completion_tokens": num_output_tokens,
        "total_tokens": admission.num_prompt_tokens + num_output_tokens,
        "prompt_tokens_details": {"cached_tokens": admission.num_cached_tokens},
    }


def open_object(head: AnswerHead, kind: str) -> bytes:
    """Print the fields that come first, up to where the next one begins."""
    fields = {"id": head.completion_id, "object": kind, "created": head.created, "model": head.model}
    return orjson.dumps(fields)[:-1] + b","


def _logprobs(entries: Sequence[Entry] | None) -> dict[str, Any] | None:
    return None if entries is None else {"content": entries, "refusal": None}


def _more(fields: Mapping[str, Any]) -> bytes:
    return b"," + orjson.dumps(fields)[1:-1] if fields else b""
