"""The bytes of completions in OpenAI's shapes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import orjson

from gateway.answer_pieces import AnswerEnd, Piece, Text, WholeAnswer
from gateway.chat_wire import open_object, usage_of
from gateway.completion_logprobs import CompletionLogprobs
from gateway.errors import Problem
from gateway.logprobs import Entry
from gateway.sse import COMMENT_PING, DONE, data
from gateway.wire import AnswerHead


class Echo(NamedTuple):
    """A prompt that is given back."""

    text: str
    num_unwritten: int
    """Of its first tokens, which the model's texts begin with and the client did not write."""


@dataclass(frozen=True, slots=True)
class CompletionStyle:
    """What a client wants to see."""

    n: int
    """Answers to each prompt: choice `i` of prompt `p` is number `p * n + i`."""
    echoes: Sequence[Echo] | None
    """By prompt, what stands before its answers; None: nothing."""
    num_logprobs: int | None
    num_prompt_logprobs: int | None
    """Of vLLM's field."""
    include_usage: bool
    """Whether a stream ends with a chunk that counts."""


class CompletionWire:
    """Prints the answers to one request."""

    ping = COMMENT_PING

    def __init__(self, head: AnswerHead, style: CompletionStyle) -> None:
        self._head = head
        self._style = style
        self._start = open_object(head, "text_completion")
        self._null_usage = b',"usage":null' if style.include_usage else b""
        self._logprobs: defaultdict[int, CompletionLogprobs] = defaultdict(CompletionLogprobs)

    def whole(self, answers: Sequence[WholeAnswer]) -> bytes:
        """Print the answers at once."""
        usage = usage_of(self._head.admission, sum(answer.end.num_tokens for answer in answers))
        choices = [self._whole_choice(number, answer) for number, answer in enumerate(answers)]
        return self._body(choices=choices, usage=usage, **self._head.diagnostics)

    def opening(self) -> bytes:
        """Nothing: a client that times its first chunk shall time a token."""
        return b""

    def first(self, choice: int, said: Piece | AnswerEnd) -> bytes:  # noqa: ARG002 -- of any kind
        """Give the prompt back, if that was asked for."""
        echo = self._echo(choice)
        return self._text(choice, echo, self._prompt_logprobs(choice)) if echo else b""

    def piece(self, choice: int, piece: Piece) -> bytes:
        """Give more text; there is nothing else in a completion."""
        return self._text(choice, piece.text, self._print(choice, piece.logprobs)) if isinstance(piece, Text) else b""

    def end(self, choice: int, end: AnswerEnd) -> bytes:
        """Say why an answer ends, with diagnostics."""
        null_usage = {"usage": None} if self._style.include_usage else {}
        logprobs = self._print(choice, end.logprobs) if end.logprobs else None  # of tokens without text
        choices = [_choice(choice, "", logprobs, end.finish_reason)]
        return data(self._body(choices=choices, **self._head.diagnostics, **null_usage))

    def close(self, num_tokens: int) -> bytes:
        """Count, in a chunk without choices."""
        if not self._style.include_usage:
            return DONE
        return data(self._body(choices=[], usage=usage_of(self._head.admission, num_tokens))) + DONE

    def failure(self, problem: Problem) -> bytes:
        """Give the error."""
        return data(problem.body)

    def _whole_choice(self, number: int, answer: WholeAnswer) -> dict[str, Any]:
        parts = (self._prompt_logprobs(number), self._print(number, answer.logprobs or ()))
        said = [part for part in parts if part is not None]
        logprobs = {name: [entry for part in said for entry in part[name]] for name in said[0]} if said else None
        choice = _choice(number, self._echo(number) + answer.text, logprobs, answer.end.finish_reason)
        if self._style.num_prompt_logprobs is not None:
            prompt = self._head.prompts[number // self._style.n]
            choice["prompt_logprobs"] = prompt.by_token(self._style.num_prompt_logprobs)
        return choice

    def _echo(self, choice: int) -> str:
        echoes = self._style.echoes
        return "" if echoes is None else echoes[choice // self._style.n].text

    def _prompt_logprobs(self, choice: int) -> dict[str, Any] | None:
        """Of the prompt, where it is part of the text."""
        style = self._style
        if style.num_logprobs is None or style.echoes is None:
            return None
        prompt = choice // style.n
        entries = self._head.prompts[prompt].entries(style.num_logprobs)
        return self._logprobs[choice].print(entries, num_unwritten=style.echoes[prompt].num_unwritten)

    def _print(self, choice: int, entries: Sequence[Entry] | None) -> dict[str, Any] | None:
        if self._style.num_logprobs is None or entries is None:
            return None
        return self._logprobs[choice].print(entries)

    def _text(self, choice: int, text: str, logprobs: dict[str, Any] | None) -> bytes:
        start = b'data: %b"choices":[{"index":%d,"text":' % (self._start, choice)
        said = b"null" if logprobs is None else orjson.dumps(logprobs)
        end = b',"logprobs":%b,"finish_reason":null}]%b}\n\n' % (said, self._null_usage)
        return start + orjson.dumps(text) + end

    def _body(self, **fields: Any) -> bytes:
        return self._start + orjson.dumps(fields)[1:]


def _choice(number: int, text: str, logprobs: dict[str, Any] | None, reason: str) -> dict[str, Any]:
    return {"index": number, "text": text, "logprobs": logprobs, "finish_reason": reason}
