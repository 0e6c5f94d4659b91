"""Reads answers as the `response_template` of a model's tokenizer says, by transformers' parser.

transformers finds where the fields of a message begin and end; text and thoughts are given as they come, and a call when it
is over. The only module of the gateway that loads transformers, which takes seconds: load it where a model has a template.

Source: transformers, utils/chat_parsing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from transformers.utils.chat_parsing.content_parsers import parse_content
from transformers.utils.chat_parsing.response_parser import ResponseParser, parse_response
from transformers.utils.chat_parsing.response_templates import load_response_template

from gateway.answer_pieces import CallArguments, CallStart, Piece, Text, Thought
from gateway.chat_messages import MAX_NAME_CHARS
from gateway.tools.call_object import is_object

_CALLS = "tool_calls"
_THOUGHTS = ("reasoning_content", "reasoning", "thinking")
_ANCHORS = ("open", "open_pattern", "close", "close_pattern")
_PLACEHOLDER = re.compile(r"\{(\w+)")


@dataclass(frozen=True, slots=True)
class ResponseForm:
    """A template, checked."""

    fields: Mapping[str, Any]
    """Of the message, as the template has them; thoughts only if they are wanted apart from the text."""
    anchor: Mapping[str, Any]
    """Where a message begins."""
    calls: Any
    """Parses one call; None: there are none."""

    @classmethod
    def of(cls, spec: Any, *, has_thoughts: bool) -> ResponseForm:
        """Check a template.

        Raises: ValueError: what is wrong with it, or what it has that is not known here.
        """
        try:
            checked = load_response_template(spec)
        except (TypeError, AttributeError, KeyError) as error:
            raise ValueError(f"transformers cannot read it: {error}") from error
        for name, field in checked.fields.items():
            if name == _CALLS:
                _check_calls(field)
            elif name not in ("content", *_THOUGHTS):
                raise ValueError(f"got the field {name}, wanted content, {_CALLS} or one of {', '.join(_THOUGHTS)}")
            elif field.content != "text" or field.transform is not None:
                raise ValueError(f"got a field {name} that is made of its text, wanted the text itself")
        fields = {name: field for name, field in spec["fields"].items() if has_thoughts or name not in _THOUGHTS}
        anchor = {key: spec[key] for key in ("start_anchor", "start_anchor_pattern") if key in spec}
        calls = None
        if _CALLS in fields:
            calls = load_response_template({**anchor, "fields": {_CALLS: {**fields[_CALLS], "optional": True}}})
        return cls(fields, anchor, calls)

    def marks(self, special_texts: Collection[str]) -> Collection[str]:
        """Find the special tokens that fields may begin or end with."""
        anchors = json.dumps([[field.get(key) for key in _ANCHORS] for field in self.fields.values()])
        written = anchors.replace("\\", "")  # patterns escape what stands in them
        return {text for text in special_texts if text in written}

    def reader(
        self,
        prompt_end: str,
        tools: Sequence[Mapping[str, Any]],
        new_id: Callable[[], str],
        *,
        has_calls: bool,
        max_calls: int | None,
    ) -> TemplateReader:
        """Begin to read an answer.

        Args:
            prompt_end: the last characters of the prompt, which may have begun a field.
            tools: whose schemas give arguments their types.
            new_id: makes ids of calls.
            has_calls: False: calls are text.
            max_calls: None: any number.
        """
        # Fields as the text that stands in them, so that nothing in an answer can fail to parse on the way.
        raw = {"content": "text", "content_args": {"strip": False}, "transform": "{content}"}
        fields = {
            name: {**{key: field[key] for key in _ANCHORS if key in field}, **raw}
            for name, field in self.fields.items()
            if has_calls or name != _CALLS
        }
        outline = load_response_template({**self.anchor, "fields": fields})
        begun = outline.truncate_past_last_anchor(prompt_end) if outline.start_anchor_re.search(prompt_end) else ""
        return TemplateReader(self, outline, begun, tools, new_id, max_calls=max_calls)


class TemplateReader:
    """Reads one answer.

    Attributes:
        num_calls: that were found.
        is_over: as many as are wanted were; what follows is not read.
    """

    def __init__(
        self,
        form: ResponseForm,
        outline: Any,
        begun: str,
        tools: Sequence[Mapping[str, Any]],
        new_id: Callable[[], str],
        *,
        max_calls: int | None,
    ) -> None:
        self.num_calls = 0
        self.is_over = False
        self._form = form
        self._outline = outline
        self._tools: list[Any] = list(tools)
        self._new_id = new_id
        self._max_calls = max_calls
        self._parser = ResponseParser(outline, prefix="")
        self._raw = ""
        """What came since the last field that is over."""
        self._place = 0
        """The parser has come at least so far in it; exactly so far in fields that begin with a mark."""
        self._start = 0
        """Of the field, with its mark."""
        self._blanks = ""
        """At the end of a text, where they are none of it if nothing follows."""
        self._is_said = False
        """Whether the field has begun to be text."""
        self._said: set[str] = set()
        """Fields that had text."""
        self._pieces: list[Piece] = []
        self.push(begun)

    def push(self, text: str) -> list[Piece]:
        """Take more text, give what is certain now."""
        self._raw += text
        return self._follow(self._parser.feed(text))

    def flush(self) -> list[Piece]:
        """Give what is left when no more text comes."""
        return self._follow(self._parser.finalize()[1])

    def _follow(self, events: Sequence[Mapping[str, Any]]) -> list[Piece]:
        self._pieces = []
        for event in events:
            name = event["field"]
            if self.is_over:
                break
            if event["type"] == "region_open":
                self._open(name)
            elif event["type"] == "region_chunk":
                self._place += len(event["text"])
                if name != _CALLS:
                    self._say(name, event["text"])
            else:
                self._close(name)
        return self._pieces

    def _open(self, name: str) -> None:
        mark = self._outline.fields[name].open_re
        found = mark.search(self._raw, self._place) if mark else None
        self._start = found.start() if found else self._place
        if found:
            self._place = found.end()
        if name != _CALLS:
            self._is_said, self._blanks = False, ""

    def _close(self, name: str) -> None:
        mark = self._outline.fields[name].close_re
        found = mark.search(self._raw, self._place) if mark and name != self._outline.implicit else None
        end = found.end() if found else len(self._raw) if name == _CALLS else self._place
        if name == _CALLS:
            self._call(self._raw[self._start : end])
        self._raw, self._place = self._raw[end:], 0

    def _say(self, name: str, text: str) -> None:
        field = self._form.fields[name]
        if field.get("content_args", {}).get("strip", True):
            text = self._blanks + text
            text = text if self._is_said else text.lstrip()
            whole, text = text, text.rstrip()
            self._blanks = whole[len(text) :]
        if not text:
            return
        if not self._is_said and name in self._said:
            text = field.get("join", "") + text
        self._is_said = True
        self._said.add(name)
        self._pieces.append(Thought(text) if name in _THOUGHTS else Text(text))

    def _call(self, written: str) -> None:
        """Give the calls in what was written; what is none is text."""
        try:
            message = parse_response(written, self._form.calls, prefix="", tools=self._tools)
            calls = [_checked(value) for value in _flat(message.get(_CALLS))]
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            calls = []
        if not calls:
            self._pieces.append(Text(self._blanks + written))
            self._said.add("content")
        self._blanks = ""
        for name, arguments in calls[: None if self._max_calls is None else self._max_calls - self.num_calls]:
            start = CallStart(self.num_calls, self._new_id(), name)
            self._pieces += [start, CallArguments(self.num_calls, arguments)]
            self.num_calls += 1
        self.is_over = self.num_calls == self._max_calls


def _flat(value: Any) -> Iterator[Any]:
    if isinstance(value, list):
        for entry in value:
            yield from _flat(entry)
    elif value is not None:
        yield value


def _checked(call: Any) -> tuple[str, str]:
    """Read a call as transformers gives it. Returns: name and arguments. Raises: ValueError: it is none."""
    function = call.get("function", call)
    name, arguments = function["name"], function.get("arguments")
    if not isinstance(arguments, str):
        arguments = json.dumps({} if arguments is None else arguments, ensure_ascii=False, allow_nan=False)
    (name + arguments).encode()  # half a character is none
    if not 0 < len(name) <= MAX_NAME_CHARS or not is_object(arguments):
        raise ValueError("no call")
    return name, arguments


def _check_calls(field: Any) -> None:
    """Find what transformers itself would find when the first call comes."""
    if field.content in ("xml-inline", "kv-lines"):
        try:
            parse_content("", field.content, field.content_args)
        except Exception as error:  # of any kind: a pattern that is none, a list for a text
            raise ValueError(f"{_CALLS}.content_args: {error}") from error
    if field.transform is None or field.transform_each:
        return
    patterns = [pattern for pattern in (field.open_re, field.close_re) if pattern is not None]
    known = {"content", *(name for pattern in patterns for name in pattern.groupindex)}
    wanted = {match for text in _texts(field.transform) for match in _PLACEHOLDER.findall(text)}
    if unknown := sorted(wanted - known):
        raise ValueError(f"{_CALLS}.transform: got {{{unknown[0]}}}, wanted one of {', '.join(sorted(known))}")


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    for entry in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _texts(entry)
