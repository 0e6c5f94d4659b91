"""A canonical conversation becomes the tokens of a prompt: template, then tokenizer.

Adapts the neutral form to what the template can take, at rendering alone; the conversation itself is not changed.
"""

from __future__ import annotations

from typing import Any

import orjson

from gateway import literals
from gateway.conversation import Conversation, Message
from gateway.errors import InvalidRequestError
from gateway.template import ChatTemplate
from gateway.tokenizer import TokenArray, Tokenizer


class PromptRenderer:
    """Renders and tokenizes for one model. Safe to call from several threads."""

    def __init__(self, template: ChatTemplate, tokenizer: Tokenizer) -> None:
        self._template = template
        self._tokenizer = tokenizer

    def check(self, conversation: Conversation) -> None:
        """Refuse what this template would drop silently.

        Raises: InvalidRequestError: tools for a template that does not render them.
        """
        if conversation.tools and not self._template.renders_tools:
            raise InvalidRequestError(
                f"tools: got {len(conversation.tools)}, wanted none: this model's chat template does not render them; "
                "serve with --chat-template FILE to use one that does",
                param="tools",
            )

    def token_ids(self, conversation: Conversation) -> TokenArray:
        """Render and tokenize.

        Returns: [num_prompt_tokens], int32.

        Raises: InvalidRequestError: the template refuses the conversation.
        """
        messages = [self._template_message(message) for message in conversation.messages]
        tools = list(conversation.tools)
        pattern = self._tokenizer.special_pattern
        if pattern is None or not literals.contains(pattern, [messages, tools]):
            return self._tokenizer.encode(self._template.render(messages, tools))
        (messages, tools), stand_for = literals.mask(pattern, [messages, tools])
        return self._tokenizer.encode_guarded(self._template.render(messages, tools), stand_for)

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
            return [{"type": "text", "text": text} for text in content]
        return "\n".join(content)


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
