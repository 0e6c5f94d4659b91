"""The bytes of chat completions in OpenAI's shapes.

A streamed chunk is a concatenation: all that is equal in every chunk of an answer is printed once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from gateway.answer_pieces import AnswerEnd, CallArguments, CallStart, Piece, Text, Thought, WholeAnswer
from gateway.backends.base import Admission
from gateway.errors import Problem
from gateway.logprobs import Entry
from gateway.sse import COMMENT_PING, DONE, data
from gateway.wire import AnswerHead


class ChatWire:
    """Prints one answer."""

    ping = COMMENT_PING

    def __init__(self, head: AnswerHead, *, include_usage: bool) -> None:
        self._head = head
        self._include_usage = include_usage
        self._start = b"data: " + open_object(head, "chat.completion.chunk")
        self._usage_end = b',"usage":null}\n\n' if include_usage else b"}\n\n"
        self._choice_end = b',"finish_reason":null}]' + self._usage_end
        self._text_end = b'},"logprobs":null' + self._choice_end

    def whole(self, answers: Sequence[WholeAnswer]) -> bytes:
        """Print the answers at once, diagnostics at the end."""
        usage = usage_of(self._head.admission, sum(answer.end.num_tokens for answer in answers))
        choices = [_whole_choice(number, answer) for number, answer in enumerate(answers)]
        rest = {"choices": choices, "usage": usage, **self._head.diagnostics, **self._head.context}
        if self._head.prompts:
            rest["prompt_logprobs"] = self._head.prompts[0].by_token()
        return open_object(self._head, "chat.completion") + orjson.dumps(rest)[1:]

    def opening(self) -> bytes:
        """Nothing: a client that times its first chunk shall time a token."""
        return b""

    def first(self, choice: int, said: Piece | AnswerEnd) -> bytes:
        """Say who speaks."""
        content = b"null" if isinstance(said, CallStart) else b'""'
        return self._delta(choice) + b'"role":"assistant","content":' + content + b',"refusal":null' + self._text_end

    def piece(self, choice: int, piece: Piece) -> bytes:
        """Give more of an answer."""
        if isinstance(piece, Text) and piece.logprobs is None:  # nearly always
            return b'%b"content":%b%b' % (self._delta(choice), orjson.dumps(piece.text), self._text_end)
        match piece:
            case Text(text, logprobs):
                said = b'},"logprobs":' + orjson.dumps(_logprobs(logprobs))
                return self._delta(choice) + b'"content":' + orjson.dumps(text) + said + self._choice_end
            case Thought(text):
                said = orjson.dumps(text)
                delta = b'"reasoning_content":' + said + b',"reasoning":' + said
            case CallStart(index, call_id, name):
                delta = _call_delta({"index": index, **_call(call_id, name, "")})
            case CallArguments(index, fragment):
                delta = _call_delta({"index": index, "function": {"arguments": fragment}})
        return self._delta(choice) + delta + self._text_end

    def end(self, choice: int, end: AnswerEnd) -> bytes:
        """Say why an answer ends, with diagnostics and what the context policy did."""
        said = orjson.dumps(_logprobs(end.logprobs or None))  # of tokens without text
        reason = b'},"logprobs":%b,"finish_reason":"%b"}]' % (said, end.finish_reason.encode())
        more = _more({**self._head.diagnostics, **self._head.context})
        return self._delta(choice) + reason + more + self._usage_end

    def close(self, num_tokens: int) -> bytes:
        """Count, in a chunk without choices."""
        if not self._include_usage:
            return DONE
        usage = usage_of(self._head.admission, num_tokens)
        return self._start + b'"choices":[],"usage":' + orjson.dumps(usage) + b"}\n\n" + DONE

    def failure(self, problem: Problem) -> bytes:
        """Give the error."""
        return data(problem.body)

    def _delta(self, choice: int) -> bytes:
        return self._start + b'"choices":[{"index":%d,"delta":{' % choice


def _whole_choice(number: int, answer: WholeAnswer) -> dict[str, Any]:
    content = answer.text or (None if answer.calls else "")
    message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
    if answer.thought:
        message |= {"reasoning_content": answer.thought, "reasoning": answer.thought}
    if answer.calls:
        message["tool_calls"] = [_call(call.call_id, call.name, call.arguments) for call in answer.calls]
    return {
        "index": number,
        "message": message,
        "logprobs": _logprobs(answer.logprobs),
        "finish_reason": answer.end.finish_reason,
    }


def _call(call_id: str, name: str, arguments: str) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def _call_delta(call: dict[str, Any]) -> bytes:
    return b'"tool_calls":' + orjson.dumps([call])


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
