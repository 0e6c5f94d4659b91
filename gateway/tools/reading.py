"""How the answers of one model are read: what is thought, what is a call, what is text."""

from __future__ import annotations

import functools
import secrets
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from gateway.answer_pieces import Piece, Text
from gateway.errors import InvalidRequestError
from gateway.model_files import ModelFilesError
from gateway.structure.grammar import Structure
from gateway.tokenizer import Tokenizer
from gateway.tools import thoughts
from gateway.tools.call_grammar import TokenOf, call_grammar, is_strict, strict_grammar
from gateway.tools.call_parser import CallParser
from gateway.tools.choice import ToolChoice
from gateway.tools.formats import FORMATS, CallFormat, format_of
from gateway.tools.thoughts import ThoughtParser

if TYPE_CHECKING:
    from gateway.tools.response_template import ResponseForm

_ALPHANUMERIC = "0123456789abcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True, slots=True)
class AnswerForm:
    """Of one model."""

    calls: CallFormat | None = None
    """None: what it writes for calls is not known here, and stays text."""
    has_thoughts: bool = False
    token_of: TokenOf = lambda _: None
    response: ResponseForm | None = None
    """Reads all of it, and the others only tell what a grammar shall let the model write; None: there is none."""
    marks: Collection[str] = ()
    """Texts that are no text of an answer; where they are special tokens, they have to be seen all the same."""

    @classmethod
    def of(
        cls,
        template: str,
        tokenizer: Tokenizer,
        response_template: Any = None,
        *,
        tool_parser: str = "auto",
        reasoning: str = "auto",
    ) -> AnswerForm:
        """Learn it from what comes with the model, where the operator does not say.

        Args:
            template: the chat template's source.
            tokenizer: of the model.
            response_template: of the tokenizer's configuration.
            tool_parser: `auto`, `none` or the name of a format.
            reasoning: `auto` or `none`.

        Raises: ModelFilesError: the response template cannot be used.
        """
        name = format_of(template) if tool_parser == "auto" else tool_parser
        calls, has_thoughts = FORMATS.get(name or ""), reasoning == "auto" and thoughts.are_printed_by(template)
        if response_template is not None and tool_parser == "auto":
            response = _response_form(response_template, has_thoughts=reasoning == "auto")
            marks = response.marks(tokenizer.special_texts)
            return cls(calls, has_thoughts, tokenizer.special_id, response, marks)
        marks = {*((calls.opening, calls.closing) if calls else ())} - {""}
        if has_thoughts:
            marks |= {thoughts.OPENING, thoughts.CLOSING}
        return cls(calls, has_thoughts, tokenizer.special_id, marks=marks)

    def reading(
        self,
        choice: ToolChoice,
        tools: Sequence[Mapping[str, Any]],
        prompt_end: Callable[[], str],
        structure: Structure | None = None,
    ) -> Reading | None:
        """Tell how the answer to one prompt is to be read; None: all of it is text.

        Args:
            choice: of tools.
            tools: that there are, as OpenAI's clients send them.
            prompt_end: gives the last characters of the prompt.
            structure: that the answer must have where it is no call.

        Raises: InvalidRequestError: a call is asked for that cannot be.
        """
        names = [str(tool["function"]["name"]) for tool in tools]
        choice.check(names)
        if choice.must_call and self.calls is None:
            raise InvalidRequestError(
                "tool_choice: got one that asks for a call, wanted auto or none: how this model writes calls is not known; "
                "serve with --tool-parser to say it",
                param="tool_choice",
            )
        calls = self.calls if names and choice.may_call else None
        if self.response is None and calls is None and not self.has_thoughts:
            return None
        is_begun = self.has_thoughts and thoughts.is_begun_by(prompt_end())
        thinking = "begun" if is_begun else "may" if self.has_thoughts else "none"
        grammar = None if calls is None else self._grammar(calls, choice, tools, structure, thinking)
        max_calls = None if choice.is_parallel else 1
        begin = None
        if self.response is not None:
            begin = functools.partial(
                self.response.reader,
                prompt_end(),
                tools,
                _id_maker(self.calls.id_chars if self.calls else 0),
                has_calls=bool(names) and choice.may_call,
                max_calls=max_calls,
            )
        return Reading(self, calls, frozenset(names), max_calls, is_begun, grammar, begin)

    def _grammar(
        self,
        calls: CallFormat,
        choice: ToolChoice,
        tools: Sequence[Mapping[str, Any]],
        structure: Structure | None,
        thinking: str,
    ) -> Structure | None:
        """Write what the answer must look like so that its calls are right; None: they are the model's business."""
        if choice.must_call:
            wanted = [tool for tool in tools if choice.name in (None, tool["function"]["name"])]
            written = call_grammar(calls, wanted, self.token_of, is_parallel=choice.is_parallel, thinking=thinking)
            return Structure(written, "tools")
        if calls.may_be_bare:  # a call that begins like any object cannot be told from it in time
            return None
        if structure is not None:
            if not structure.is_json:
                return None
            written = call_grammar(
                calls,
                tools,
                self.token_of,
                is_parallel=choice.is_parallel,
                thinking=thinking,
                instead=structure.grammar,
            )
            return Structure(written, f"{structure.field} with tools")
        if any(map(is_strict, tools)):
            return Structure(strict_grammar(calls, tools, self.token_of, thinking=thinking), "tools")
        return None


@dataclass(frozen=True, slots=True)
class Reading:
    """Of one prompt's answers."""

    form: AnswerForm
    calls: CallFormat | None
    """None: there are none in this answer."""
    tools: frozenset[str]
    max_calls: int | None
    is_begun: bool
    """The prompt ends within a thought."""
    structure: Structure | None
    """What makes its calls right, in place of the structure that was asked for; None: nothing does."""
    begin: Callable[[], Reader] | None = None
    """Begins to read as the model's response template says; None: it has none."""

    def reader(self, *, is_whole: bool) -> Reader:
        """Begin to read an answer; `is_whole`: nobody sees it before its end."""
        if self.begin is not None:
            return self.begin()
        calls = None
        if self.calls is not None:
            new_id = _id_maker(self.calls.id_chars)
            calls = CallParser(self.calls, self.tools, new_id, max_calls=self.max_calls, is_whole=is_whole)
        return AnswerReader(ThoughtParser(is_begun=self.is_begun) if self.form.has_thoughts else None, calls)


class Reader(Protocol):
    """Reads one answer."""

    @property
    def num_calls(self) -> int:
        """So many have begun."""

    @property
    def is_over(self) -> bool:
        """Whether nothing more is wanted."""

    def push(self, text: str) -> list[Piece]:
        """Take more text, give what is certain now."""

    def flush(self) -> list[Piece]:
        """Give what is left when no more text comes."""


class AnswerReader:
    """Reads one answer: thoughts first, calls in what remains."""

    def __init__(self, thoughts: ThoughtParser | None, calls: CallParser | None) -> None:
        self._thoughts = thoughts
        self._calls = calls

    @property
    def num_calls(self) -> int:
        """So many have begun."""
        return self._calls.num_calls if self._calls else 0

    @property
    def is_over(self) -> bool:
        """Whether nothing more is wanted."""
        return self._calls is not None and self._calls.is_over

    def push(self, text: str) -> list[Piece]:
        """Take more text, give what is certain now."""
        return self._read([Text(text)] if self._thoughts is None else self._thoughts.push(text))

    def flush(self) -> list[Piece]:
        """Give what is left when no more text comes."""
        pieces = self._read([] if self._thoughts is None else self._thoughts.flush())
        return pieces if self._calls is None else pieces + self._calls.flush()

    def _read(self, pieces: list[Piece]) -> list[Piece]:
        calls = self._calls
        if calls is None:
            return pieces
        return [read for piece in pieces for read in (calls.push(piece.text) if isinstance(piece, Text) else [piece])]


def _response_form(spec: Any, *, has_thoughts: bool) -> ResponseForm:
    try:
        from gateway.tools.response_template import ResponseForm  # loads transformers

        return ResponseForm.of(spec, has_thoughts=has_thoughts)
    except (ImportError, ValueError) as error:
        raise ModelFilesError(
            f"tokenizer_config.json: response_template: {error}; serve with --tool-parser hermes, llama3, mistral or none "
            "to do without it"
        ) from error


def _id_maker(num_chars: int) -> Callable[[], str]:
    if num_chars:
        return lambda: "".join(secrets.choice(_ALPHANUMERIC) for _ in range(num_chars))
    return lambda: f"call_{uuid.uuid4().hex}"
