"""From what an operator sends to a version: checked, canonical, tokenized. Pure; stores nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import orjson

from gateway.backends.base import ModelInfo
from gateway.chat_messages import parse_messages, parse_tools
from gateway.conversation import Conversation, body_of
from gateway.errors import ContextLengthError, InvalidRequestError
from gateway.normalize.modes import EVERY, RuleModes
from gateway.normalize.registry import Choice
from gateway.normalize.rule import Mode
from gateway.prompts.head import PromptHead, prompt_head
from gateway.prompts.slots import check_slots, check_variables, fill
from gateway.rendering import PromptRenderer


@dataclass(frozen=True, slots=True, eq=False)
class CompiledPrompt:
    """A prompt in every form that is needed of it."""

    raw: Conversation
    canonical: Conversation
    slots: tuple[str, ...]
    choices: Mapping[str, Choice]
    """By rule, for requests that name it."""
    head: PromptHead

    def before(
        self, conversation: Conversation, variables: Mapping[str, Any], *, open_slots: bool = False
    ) -> Conversation:
        """Put the prompt, its slots filled in, before what a client says.

        Args:
            conversation: the client's.
            variables: values of the slots.
            open_slots: leave the marks of the slots in place: their values are stated elsewhere.

        Raises: InvalidRequestError: a variable is missing, unknown, or no string.
        """
        check_variables(self.slots, variables)
        filled = self.canonical if open_slots else fill(self.canonical, self.slots, variables)
        return replace(
            conversation,
            messages=(*filled.messages, *conversation.messages),
            tools=(*filled.tools, *conversation.tools),
        )


class PromptCompiler:
    """Compiles for the served model."""

    def __init__(self, modes: RuleModes, renderer: PromptRenderer) -> None:
        self._modes = modes
        self._renderer = renderer

    def compile(
        self,
        source: Mapping[str, Any],
        slots: Sequence[str],
        modes: Mapping[str, str],
        *,
        tenant: str = EVERY,
        max_model_len: int | None = None,
    ) -> CompiledPrompt:
        """Check and compile.

        Args:
            source: `messages` and, where there are, `tools`, as in a chat.
            slots: names that stand in the text as `{{name}}`.
            modes: rule name -> `off`, `audit` or `on` for this prompt.
            tenant: whose requests will begin with it; `*`: everybody's.
            max_model_len: a text that is too long for it in any case is not tokenized.

        Raises: InvalidRequestError: the first thing that is wrong; ContextLengthError: it is far too long.
        """
        choices = {name: Choice(Mode(mode)) for name, mode in modes.items()}
        rules = self._modes.rule_set(tenant, EVERY, choices)
        raw = Conversation(parse_messages(source.get("messages")), parse_tools(source.get("tools")))
        canonical = rules.normalize(raw).conversation
        check_slots(canonical, slots)
        head = prompt_head(canonical, slots, self._renderer, max_model_len=max_model_len)
        return CompiledPrompt(raw, canonical, tuple(slots), choices, head)


def source_of(text: str | None, messages: object, tools: object) -> dict[str, Any]:
    """Bring the two ways to give a prompt into one.

    Raises: InvalidRequestError: both came, or neither.
    """
    if (text is None) == (messages is None):
        got = "neither" if text is None else "both"
        raise InvalidRequestError(f"text: got {got} text and messages, wanted one of the two", param="text")
    source: dict[str, Any] = {"messages": [{"role": "system", "content": text}] if messages is None else messages}
    return source if tools is None else source | {"tools": tools}


def canonical_json(conversation: Conversation) -> str:
    """Print a conversation as the canonical form that is stored and shown."""
    return orjson.dumps(body_of(conversation)).decode()


def check_length(head: PromptHead, model: ModelInfo) -> None:
    """Refuse a prompt that leaves no room for a question.

    Raises: ContextLengthError: with the numbers.
    """
    if len(head.token_ids) >= model.max_model_len - 1:
        raise ContextLengthError(
            f"text: got a prompt of {len(head.token_ids)} tokens, wanted at most {model.max_model_len - 2}: the model "
            f"takes {model.max_model_len}, the client's turn and the answer included",
            param="text",
        )
