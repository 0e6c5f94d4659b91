"""A canonical conversation becomes the tokens of a prompt: template, then tokenizer.

Adapts the neutral form to what the template can take, at rendering alone; the conversation itself is not changed.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson

from gateway import checks, literals
from gateway.continuation import begun_answer, cut_behind
from gateway.conversation import Content, Conversation, Message, Part, text_part, texts_of, with_one_head_message
from gateway.errors import ContextLengthError, InvalidRequestError
from gateway.pieces import Piece, PieceEncoder
from gateway.regions import Layout, Region, lay_out, regions_of
from gateway.splicing import Splice, Splicer
from gateway.switches import switches_of
from gateway.template import ChatTemplate
from gateway.template_wording import GenerationPrompts, learn
from gateway.token_borders import find_borders
from gateway.token_memo import TokenMemo
from gateway.tokenizer import TokenArray, Tokenizer
from gateway.tool_prints import PrintedArray, ToolPrints

logger = logging.getLogger(__name__)

_MAX_ENDING_CHARS = 200
_TEXT_ALONE = "this server takes no images, audio or files"


@dataclass(frozen=True, slots=True, eq=False)
class WrittenPrompt:
    """A rendered text, and what the template was given for it."""

    text: str
    messages: Sequence[Mapping[str, Any]]
    texts: Sequence[Sequence[str]]
    """Of the parts of each message's content."""
    tools: PrintedArray
    switches: Mapping[str, Any]
    literals: Mapping[str, str]
    """Marker in the text -> what it stands for."""


class RenderedPrompt:
    """A prompt, and on request where its tokens came from."""

    def __init__(
        self,
        written: WrittenPrompt,
        pieces: Sequence[Piece],
        splices: Sequence[Splice],
        encoder: PieceEncoder,
        lay_out: Callable[[WrittenPrompt], Layout],
    ) -> None:
        self._written = written
        self._pieces = pieces
        self._splices = splices
        self._encoder = encoder
        self._lay_out = lay_out
        ids = [piece.token_ids for piece in pieces]
        self.token_ids: TokenArray = np.concatenate(ids) if ids else np.zeros(0, dtype=np.int32)
        """[num_prompt_tokens], int32."""
        self.spliced = frozenset(splice.message for splice in splices)
        """Messages whose tokens are those that were given for them."""

    @property
    def num_chars(self) -> int:
        """Size of the text as it was rendered."""
        return len(self._written.text)

    @functools.cached_property
    def text(self) -> str:
        """The characters that the tokens stand for."""
        return "".join(self._written.literals.get(piece.text, piece.text) for piece in self._pieces)

    def ending(self) -> str:
        """Return what the template writes where the answer begins, and perhaps more before it."""
        return self._written.text[-_MAX_ENDING_CHARS:]

    @functools.cached_property
    def regions(self) -> list[Region]:
        """Who owns which tokens: all of them, in order and without overlap."""
        spliced = [(f"messages[{splice.message}]", (splice.start, splice.end)) for splice in self._splices]
        return regions_of(self._lay_out(self._written).spans(spliced), self._pieces, self._encoder)


class PromptRenderer:
    """Renders and tokenizes for one model. Safe to call from several threads.

    Args:
        template: of the model.
        tokenizer: of the model.
        memo: the ids of pieces that came before.
    """

    def __init__(self, template: ChatTemplate, tokenizer: Tokenizer, memo: TokenMemo | None = None) -> None:
        self._template = template
        self._tokenizer = tokenizer
        self._borders = find_borders(tokenizer, [template.source, *template.special_tokens.values()])
        if not self._borders.ids:
            logger.warning("prompts are tokenized whole each time: %s", self._borders.why_none)
        self._encoder = PieceEncoder(tokenizer, self._borders, memo or TokenMemo())
        self._splicer = Splicer(tokenizer, self._borders)
        self._wording = learn(template)
        self._generation_prompts = GenerationPrompts(template)
        self._tools = ToolPrints(tokenizer.has_special)

    def check(self, conversation: Conversation) -> None:
        """Refuse what this template would drop silently.

        Raises: InvalidRequestError: tools or calls for a template that does not render them, or parts that are no text.
        """
        for index, message in enumerate(conversation.messages):
            if isinstance(message.content, tuple):
                _check_parts(f"messages[{index}].content", message.content, message.role)
            if message.fields.get("audio"):
                checks.refuse(f"messages[{index}].audio", message.fields["audio"], f"it left out: {_TEXT_ALONE}")
            if message.fields.get("tool_calls") and not self._template.renders_calls:
                raise _not_rendered(f"messages[{index}].tool_calls", len(message.fields["tool_calls"]))
        if conversation.tools and not self._template.renders_tools:
            raise _not_rendered("tools", len(conversation.tools))

    def fit_head(self, conversation: Conversation) -> Conversation:
        """Give the system messages at the start the form that the template takes: several, or one of all."""
        return conversation if self._template.takes_system_messages else with_one_head_message(conversation)

    def render(
        self,
        conversation: Conversation,
        *,
        tenant: str | None = None,
        max_model_len: int | None = None,
        spans: Mapping[int, TokenArray] | None = None,
    ) -> RenderedPrompt:
        """Render and tokenize.

        Args:
            conversation: normalized.
            tenant: whose pieces of text are remembered with their tokens; None: nothing is.
            max_model_len: a text that is too long for it in any case is not tokenized, for that takes seconds.
            spans: message -> the tokens that the model wrote for it; they take the place of its text where they
                decode to it and may stand there, and the result says where that was.

        Raises: InvalidRequestError: the template refuses the conversation; ContextLengthError: it is far too long.
        """
        written = self.write(conversation, max_model_len=max_model_len)
        return self.tokenize(written, tenant=tenant, spans=spans)

    def tokenize(
        self, written: WrittenPrompt, *, tenant: str | None = None, spans: Mapping[int, TokenArray] | None = None
    ) -> RenderedPrompt:
        """Tokenize what was rendered; see `render`."""
        splices: list[Splice] = []
        if spans:
            places = [found.hull if found else None for found in self._lay_out(written).messages]
            prompts = self._generation_prompts.of(written.switches)
            splices = self._splicer.place(written.text, places, spans, prompts)
        pieces: list[Piece] = []
        start = 0
        for splice in splices:
            pieces += self._encode(written, start, splice.start, tenant)
            pieces.append(Piece(written.text[splice.start : splice.end], splice.token_ids))
            start = splice.end
        pieces += self._encode(written, start, len(written.text), tenant)
        return RenderedPrompt(written, pieces, splices, self._encoder, self._lay_out)

    def token_ids(self, conversation: Conversation, *, max_model_len: int | None = None) -> TokenArray:
        """Render and tokenize, remember nothing, and give the ids alone.

        Returns: [num_prompt_tokens], int32.

        Raises: as `render`.
        """
        return self.render(conversation, max_model_len=max_model_len).token_ids

    def _encode(self, written: WrittenPrompt, start: int, end: int, tenant: str | None) -> list[Piece]:
        return self._encoder.encode(written.text[start:end], written.literals, tenant=tenant, is_start=start == 0)

    def _lay_out(self, written: WrittenPrompt) -> Layout:
        return lay_out(written.text, written.messages, written.texts, written.tools, self._wording.headers)

    def num_new_chars(self, written: WrittenPrompt, *, tenant: str | None) -> int:
        """Count the characters whose tokens nobody remembers: what tokenizing takes time for."""
        return self._encoder.num_new_chars(written.text, written.literals, tenant=tenant)

    def write(self, conversation: Conversation, *, max_model_len: int | None = None) -> WrittenPrompt:
        """Render, with markers for what looks like a special token and is none.

        Raises: as `render`.
        """
        messages = [self._template_message(message) for message in conversation.messages]
        texts = [_words(message.content) for message in conversation.messages]
        switches = switches_of(conversation.fields, self._template.reserved)
        tools = self._tools.prepare(conversation.tools)
        stand_for: dict[str, str] = {}
        if tools is None or self._tokenizer.has_special([messages, switches]):
            assert self._tokenizer.special_pattern is not None
            (messages, texts, switches, masked), stand_for = literals.mask(
                self._tokenizer.special_pattern, [messages, texts, switches, conversation.tools]
            )
            tools = PrintedArray(masked)
        if begun_answer(conversation) is None:
            text = self._template.render(messages, tools, switches)
        else:
            text = self._continued(messages, tools, switches)
        written = WrittenPrompt(text, messages, texts, tools, switches, stand_for)
        self._check_length(written, max_model_len)
        return written

    def _continued(
        self, messages: Sequence[Mapping[str, Any]], tools: PrintedArray, switches: Mapping[str, Any]
    ) -> str:
        whole = self._template.render(messages, tools, switches, add_generation_prompt=False)
        text = cut_behind(whole, messages[-1], self._wording.ending)
        if text is None:
            field = f"messages[{len(messages) - 1}].content"
            raise InvalidRequestError(
                f"{field}: got the beginning of an answer, wanted none: this model's chat template does not print it as "
                "it is, so it cannot be continued",
                param=field,
            )
        return text

    def _check_length(self, written: WrittenPrompt, max_model_len: int | None) -> None:
        """Refuse a text that is too long whatever its tokens are."""
        bound, text = self._tokenizer.bound, written.text
        if max_model_len is None or bound is None:
            return
        max_chars = (max_model_len - 1) * bound.max_chars
        if len(text) <= max_chars:
            return
        num_chars = bound.num_chars(text) + sum(
            text.count(marker) * (bound.num_chars(literal) - len(marker))
            for marker, literal in written.literals.items()
        )
        if num_chars > max_chars:
            raise ContextLengthError(
                f"messages: got a prompt of {num_chars} characters, wanted at most {max_chars}: the model takes "
                f"{max_model_len} tokens, prompt and answer together, and none stands for more than {bound.max_chars} "
                "characters",
                param="messages",
            )

    def _template_message(self, message: Message) -> dict[str, Any]:
        rendered: dict[str, Any] = {"role": message.role, "content": self._template_content(message)}
        for name, value in message.fields.items():
            if value is not None:
                rendered[name] = _parsed_arguments(value) if name == "tool_calls" else value
        return rendered

    def _template_content(self, message: Message) -> Any:
        content = message.content
        if content is None or isinstance(content, str):
            return content or ""
        if self._template.takes_parts:
            return [text_part(text) for text in _words(content)]
        return "\n".join(_words(content))


def _not_rendered(field: str, count: int) -> InvalidRequestError:
    return InvalidRequestError(
        f"{field}: got {count}, wanted none: this model's chat template does not render them; serve with --tool-template "
        "hermes to write them into its turns, or with --chat-template FILE to use one that renders them",
        param=field,
    )


def _check_parts(field: str, parts: Sequence[Part], role: str) -> None:
    for index, part in enumerate(parts):
        if part["type"] == "refusal" and role == "assistant":
            checks.text(f"{field}[{index}].refusal", part.get("refusal"))
        elif part["type"] == "file" and role == "user":
            wanted = "the id or name of a registered document: this server takes no other files"
            checks.refuse(f"{field}[{index}].file.file_id", _file_id(part), wanted)
        elif part["type"] != "text":
            checks.refuse(f"{field}[{index}].type", part["type"], f"'text': {_TEXT_ALONE}")


def _file_id(part: Part) -> object:
    file = part.get("file")
    return file.get("file_id") if isinstance(file, Mapping) else file


def _words(content: Content) -> list[str]:
    """Return the texts of a content; what an assistant refused with are words of its own as well."""
    if content is None or isinstance(content, str):
        return texts_of(content)
    return [part[part["type"]] for part in content if part["type"] in ("text", "refusal")]


def _parsed_arguments(calls: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Give the arguments of tool calls as objects, as templates expect them; what is no JSON object stays text."""
    return [{**call, "function": {**call["function"], "arguments": _object_or_text(call)}} for call in calls]


def _object_or_text(call: dict[str, Any]) -> Any:
    text = call["function"]["arguments"]
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        return text
    return value if isinstance(value, dict) else text
