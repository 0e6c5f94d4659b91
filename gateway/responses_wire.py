"""The bytes of answers in the shapes of OpenAI's Responses."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import orjson

from gateway.answer_pieces import AnswerEnd, Call, CallArguments, CallStart, Piece, Text, Thought, WholeAnswer
from gateway.errors import Problem
from gateway.responses_items import FunctionCall, Item, Json, Message, Reasoning
from gateway.sse import COMMENT_PING
from gateway.wire import AnswerHead

_COMPLETED, _INCOMPLETE = "completed", "incomplete"


class ResponsesWire:
    """Prints one answer.

    An item ends where one of another kind begins, and a call where the next one does: the pieces of two never mix.

    Args:
        head: of the answer.
        echo: fields of the answer that repeat the request's.
    """

    ping = COMMENT_PING

    def __init__(self, head: AnswerHead, echo: Mapping[str, Any]) -> None:
        self._head = head
        self._echo = echo
        self._items: list[Item] = []
        self._is_open = False
        self._status = _COMPLETED
        self._num_events = 0

    def whole(self, answers: Sequence[WholeAnswer]) -> bytes:
        """Print the only answer."""
        (answer,) = answers
        if answer.thought:
            self._items.append(Reasoning(*self._next("rs"), answer.thought))
        if answer.text:
            self._items.append(Message(*self._next("msg"), answer.text, answer.logprobs))
        for call in answer.calls:
            self._items.append(FunctionCall(*self._next("fc"), call))
        self._status = _status(answer.end)
        return orjson.dumps(self._response(self._status, usage=self._usage(answer.end.num_tokens)))

    def opening(self) -> bytes:
        """Say that the work has begun."""
        response = self._response("in_progress")
        return self._events([{"type": f"response.{kind}", "response": response} for kind in ("created", "in_progress")])

    def first(self, choice: int, said: Piece | AnswerEnd) -> bytes:  # noqa: ARG002 -- there is one, of any kind
        """Nothing: an item begins when it is known of what kind it is."""
        return b""

    def piece(self, choice: int, piece: Piece) -> bytes:  # noqa: ARG002 -- there is one
        """Print more of an item, or begin one."""
        match piece:
            case Text(text, logprobs):
                message, begun = self._of_kind(Message, "msg")
                return begun + self._events([message.more(text, logprobs)])
            case Thought(text):
                reasoning, begun = self._of_kind(Reasoning, "rs")
                return begun + self._events([reasoning.more(text)])
            case CallStart(_, call_id, name):
                return self._begin(FunctionCall(*self._next("fc"), Call(call_id, name)))
            case CallArguments(_, fragment):
                call = self._items[-1]
                assert isinstance(call, FunctionCall)
                return self._events([call.more(fragment)])

    def end(self, choice: int, end: AnswerEnd) -> bytes:  # noqa: ARG002 -- there is one
        """End the last item."""
        self._status = _status(end)
        return self._end_item(self._status)

    def close(self, num_tokens: int) -> bytes:
        """Give the whole response, which says why it ended and counts."""
        response = self._response(self._status, usage=self._usage(num_tokens))
        return self._events([{"type": f"response.{self._status}", "response": response}])

    def failure(self, problem: Problem) -> bytes:
        """Give the error twice: in the response, and as an event by itself.

        The `error` in the event is not in OpenAI's own description, but their SDK raises because of it.
        """
        error = orjson.loads(problem.body)["error"]
        told = {"code": "server_error", "message": problem.message}
        alone = {"type": "error", "code": problem.code, "message": problem.message, "param": error["param"]}
        failed = {"type": "response.failed", "response": self._response("failed", error=told)}
        return self._events([failed, {**alone, "error": error}])

    def _of_kind(self, kind: Any, prefix: str) -> tuple[Any, bytes]:
        """Give the open item if it is of a kind, else begin one, with the frames that tell of it."""
        if self._is_open and isinstance(self._items[-1], kind):
            return self._items[-1], b""
        item = kind(*self._next(prefix))
        return item, self._begin(item)

    def _begin(self, item: Item) -> bytes:
        ended = self._end_item(_COMPLETED)
        self._items.append(item)
        self._is_open = True
        return ended + self._events(item.opening())

    def _end_item(self, status: str) -> bytes:
        if not self._is_open:
            return b""
        self._is_open = False
        return self._events(self._items[-1].ending(status))

    def _next(self, prefix: str) -> tuple[str, int]:
        """Name the next item, and give its place."""
        index = len(self._items)
        return f"{prefix}_{self._head.completion_id.partition('_')[2]}{index:02x}", index

    def _events(self, events: Iterable[Json]) -> bytes:
        frames = []
        for event in events:
            kind = event["type"].encode()
            frames.append(
                b"event: %b\ndata: %b\n\n" % (kind, orjson.dumps(event | {"sequence_number": self._num_events}))
            )
            self._num_events += 1
        return b"".join(frames)

    def _response(self, status: str, *, usage: Json | None = None, error: Json | None = None) -> Json:
        printed = [item.printed(_COMPLETED) for item in self._items[:-1]]
        printed += [item.printed(_COMPLETED if status == _COMPLETED else _INCOMPLETE) for item in self._items[-1:]]
        return {
            "id": self._head.completion_id,
            "object": "response",
            "created_at": self._head.created,
            "status": status,
            "error": error,
            "incomplete_details": {"reason": "max_output_tokens"} if status == _INCOMPLETE else None,
            "model": self._head.model,
            "output": printed,
            **({} if usage is None else {"usage": usage, **self._head.context}),
            **self._echo,
            **self._head.diagnostics,
        }

    def _usage(self, num_tokens: int) -> Json:
        admission = self._head.admission
        return {
            "input_tokens": admission.num_prompt_tokens,
            "input_tokens_details": {
                "cached_tokens": admission.num_cached_tokens,
                "cache_write_tokens": self._head.num_written_tokens,
            },
            "output_tokens": num_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": admission.num_prompt_tokens + num_tokens,
        }


def _status(end: AnswerEnd) -> str:
    return _INCOMPLETE if end.finish_reason == "length" else _COMPLETED
