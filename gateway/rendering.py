"""A canonical conversation becomes the tokens of a prompt: template, then tokenizer.

Adapts the neutral form to what the template can take, at rendering alone; the conversation itself is not changed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from gateway import literals
from gateway.conversation import Conversation, Message, Part, text_part, texts_of
from gateway.errors import ContextLengthError, InvalidRequestError, shown
from gateway.template import ChatTemplate
from gateway.tokenizer import TokenArray, Tokenizer


class PromptRenderer:
    """Renders and tokenizes for one model. Safe to call from several threads."""

    def __init__(self, template: ChatTemplate, tokenizer: Tokenizer) -> None:
        self._template = template
        self._tokenizer = tokenizer

    def check(self, conversation: Conversation) -> None:
        """Refuse what this template would drop silently.

        Raises: InvalidRequestError: tools for a template that does not render them, or parts that are no text.
        """
        for index, message in enumerate(conversation.messages):
            if isinstance(message.content, tuple):
                _check_parts(f"messages[{index}].content", message.content)
        if conversation.tools and not self._template.renders_tools:
            raise InvalidRequestError(
                f"tools: got {len(conversation.tools)}, wanted none: this model's chat template does not render them; "
                "serve with --chat-template FILE to use one that does",
                param="tools",
            )

    def token_ids(self, conversation: Conversation, *, max_model_len: int | None = None) -> TokenArray:
        """Render and tokenize.

        Args:
            conversation: normalized.
            max_model_len: a text that is too long for it in any case is not tokenized, for that takes seconds.

        Returns: [num_prompt_tokens], int32.

        Raises: InvalidRequestError: the template refuses the conversation; ContextLengthError: it is far too long.
        """
        messages = [self._template_message(message) for message in conversation.messages]
        tools = list(conversation.tools)
        pattern = self._tokenizer.special_pattern
        if pattern is None or not literals.contains(pattern, [messages, tools]):
            text = self._template.render(messages, tools)
            self._check_length(text, {}, max_model_len)
            return self._tokenizer.encode(text)
        (messages, tools), stand_for = literals.mask(pattern, [messages, tools])
        text = self._template.render(messages, tools)
        self._check_length(text, stand_for, max_model_len)
        return self._tokenizer.encode_guarded(text, stand_for)

    def _check_length(self, text: str, stand_for: Mapping[str, str], max_model_len: int | None) -> None:
        """Refuse a text that is too long whatever its tokens are."""
        bound = self._tokenizer.bound
        if max_model_len is None or bound is None:
            return
        max_chars = (max_model_len - 1) * bound.max_chars
        if len(text) <= max_chars:
            return
        num_chars = bound.num_chars(text) + sum(
            text.count(marker) * (bound.num_chars(literal) - len(marker)) for marker, literal in stand_for.items()
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
            return [text_part(text) for text in texts_of(content)]
        return "\n".join(texts_of(content))


def _check_parts(field: str, parts: Sequence[Part]) -> None:
    for index, part in enumerate(parts):
        if part["type"] != "text":
            name = f"{field}[{index}].type"
            raise InvalidRequestError(
                f"{name}: got {shown(part['type'])}, wanted 'text': this server takes no images, audio or files",
                param=name,
            )


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
