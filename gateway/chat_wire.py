"""The bytes of chat completions in OpenAI's shapes.

A streamed chunk is a concatenation: all that is equal in every chunk of an answer is printed once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from gateway.backends.base import Admission
from gateway.logprobs import Entry
from prefixcache.interface import Reason
from prefixcache.reasons import main_reason


@dataclass(frozen=True, slots=True)
class AnswerHead:
    """What all chunks of an answer have in common."""

    completion_id: str
    created: int
    """Seconds since 1970."""
    model: str


class ChunkWriter:
    """Frames of one streamed answer."""

    def __init__(self, head: AnswerHead, *, include_usage: bool) -> None:
        self._start = b"data: " + _open(head, "chat.completion.chunk")
        self._content = self._start + b'"choices":[{"index":0,"delta":{"content":'
        self._usage_end = b',"usage":null}\n\n' if include_usage else b"}\n\n"
        self._choice_end = b',"finish_reason":null}]' + self._usage_end
        self._content_end = b'},"logprobs":null' + self._choice_end

    def role(self) -> bytes:
        """Say who speaks; comes first."""
        delta = b'"choices":[{"index":0,"delta":{"role":"assistant","content":"","refusal":null'
        return self._start + delta + self._content_end

    def content(self, text: str, logprobs: Sequence[Entry] | None = None) -> bytes:
        """Give more text, with the log probabilities of its tokens; None: not asked for."""
        start = self._content + orjson.dumps(text)
        if logprobs is None:
            return start + self._content_end
        return start + b'},"logprobs":' + orjson.dumps(_logprobs(logprobs)) + self._choice_end

    def finish(self, reason: str, extra: Mapping[str, Any], logprobs: Sequence[Entry] | None = None) -> bytes:
        """Say why the answer ends, and add fields to the body; log probabilities are of tokens without text."""
        said = orjson.dumps(_logprobs(logprobs or None))
        choice = b'"choices":[{"index":0,"delta":{},"logprobs":%b,"finish_reason":"%b"}]' % (said, reason.encode())
        return self._start + choice + _more(extra) + self._usage_end

    def usage(self, usage: dict[str, Any]) -> bytes:
        """Count; comes last, in a chunk without choices."""
        return self._start + b'"choices":[],"usage":' + orjson.dumps(usage) + b"}\n\n"


def completion_body(
    head: AnswerHead,
    text: str,
    finish_reason: str,
    usage: dict[str, Any],
    extra: Mapping[str, Any],
    logprobs: Sequence[Entry] | None = None,
) -> bytes:
    """Print an answer in one piece, with `extra` fields at its end."""
    message = {"role": "assistant", "content": text, "refusal": None}
    choice = {"index": 0, "message": message, "logprobs": _logprobs(logprobs), "finish_reason": finish_reason}
    rest = {"choices": [choice], "usage": usage, **extra}
    return _open(head, "chat.completion") + orjson.dumps(rest)[1:]


def usage_of(admission: Admission, num_output_tokens: int) -> dict[str, Any]:
    """Give the `usage` object."""
    return {
        "prompt_tokens": admission.num_prompt_tokens,
        "completion_tokens": num_output_tokens,
        "total_tokens": admission.num_prompt_tokens + num_output_tokens,
        "prompt_tokens_details": {"cached_tokens": admission.num_cached_tokens},
    }


def cache_header(admission: Admission, fired_rules: Sequence[str]) -> bytes:
    """Print `x-prefixgate-cache`: what was reused, and in one word why no more."""
    return (
        f"cached={admission.num_cached_tokens}; prompt={admission.num_prompt_tokens}; "
        f"reason={_main_reason(admission)}; rules={','.join(fired_rules) or 'none'}"
    ).encode()


def _main_reason(admission: Admission) -> Reason:
    """Find the one reason to tell a client."""
    reasons = {Reason(name): num_blocks for name, num_blocks in admission.reasons.items() if num_blocks}
    if not reasons:
        return Reason.HIT if admission.num_cached_tokens else Reason.NEVER_CACHED
    reason = main_reason(reasons, num_computed_tokens=admission.num_prompt_tokens - admission.num_cached_tokens)
    return Reason.NEVER_CACHED if reason is Reason.OTHER_SCOPE else reason


def _logprobs(entries: Sequence[Entry] | None) -> dict[str, Any] | None:
    return None if entries is None else {"content": entries, "refusal": None}


def _more(fields: Mapping[str, Any]) -> bytes:
    return b"," + orjson.dumps(fields)[1:-1] if fields else b""


def _open(head: AnswerHead, kind: str) -> bytes:
    """Print the fields that come first, up to where the next one begins."""
    fields = {"id": head.completion_id, "object": kind, "created": head.created, "model": head.model}
    return orjson.dumps(fields)[:-1] + b","
