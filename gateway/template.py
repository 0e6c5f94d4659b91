"""Rendering of chat templates, the way transformers does it.

Templates come with models, so they run in a sandbox. Compiled once; knows nothing of tokens.

Source: transformers, utils/chat_template_utils.py: environment options, filters and globals.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from gateway.errors import InvalidRequestError
from gateway.tool_prints import print_json

_ARGUMENTS = ("messages", "tools", "add_generation_prompt", "continue_final_message")


class ChatTemplateError(Exception):
    """The template itself cannot be used."""


class ChatTemplate:
    """One compiled chat template.

    Attributes:
        renders_tools: the source speaks of `tools`, so they will not be dropped silently.
        renders_calls: the same of calls in the history.
        takes_parts: content may be a list of text parts; else it has to be one string.
        takes_system_messages: several at the start; else one at most.
        source: as it came.
        special_tokens: names that it may write -> their texts.
        reserved: names that no switch may have.
    """

    def __init__(
        self,
        source: str,
        *,
        special_tokens: Mapping[str, str],
        now: Callable[[], datetime] = datetime.now,
        chance: random.Random | None = None,
    ) -> None:
        """Compile.

        Args:
            source: Jinja.
            special_tokens: names that it may write -> their texts.
            now: the clock that it may print.
            chance: what its `random` filter draws from.
        """
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
        )
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _raise_exception
        environment.filters["random"] = (chance or random.Random()).choice  # noqa: S311 -- nothing secret
        del environment.globals["lipsum"]  # random text of any length
        environment.globals["strftime_now"] = lambda form: now().strftime(form)
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise ChatTemplateError(f"the chat template does not compile: line {error.lineno}: {error}") from error
        self.source = source
        self.special_tokens = dict(special_tokens)
        self.reserved = frozenset({*_ARGUMENTS, *special_tokens, *environment.globals})
        self.renders_tools = "tools" in source
        self.renders_calls = "tool_calls" in source
        self.takes_parts = self._probe_parts()
        self.takes_system_messages = self._probe_system_messages()

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] = (),
        switches: Mapping[str, Any] | None = None,
        *,
        add_generation_prompt: bool = True,
    ) -> str:
        """Render messages.

        Args:
            messages: as templates expect them.
            tools: empty: there are none.
            switches: further variables, none of them `reserved`.
            add_generation_prompt: up to where the assistant's answer begins; else up to the end of the last message.

        Raises: InvalidRequestError: the template refused the messages; it may do so in any way.
        """
        try:
            return self._template.render(
                {
                    "documents": None,
                    **(switches or {}),
                    **self.special_tokens,
                    "messages": messages,
                    "tools": tools or None,
                    "add_generation_prompt": add_generation_prompt,
                }
            )
        except Exception as error:  # a template is foreign code: whatever it raises, it is about what it was given
            raise InvalidRequestError(
                f"messages: the model's chat template refused them: {error}", param="messages"
            ) from error

    def _probe_parts(self) -> bool:
        """Try a list of parts: its text, and nothing of its structure, must come out."""
        probe = [{"role": "user", "content": [{"type": "text", "text": "probe-text"}]}]
        try:
            rendered = self.render(probe)
        except InvalidRequestError:
            return False
        return "probe-text" in rendered and "'text'" not in rendered and '"text"' not in rendered

    def _probe_system_messages(self) -> bool:
        """Try two: both must come out, each once and in order."""
        roles = (("system", "probe-one"), ("system", "probe-two"), ("user", "probe-three"))
        try:
            rendered = self.render([{"role": role, "content": content} for role, content in roles])
        except InvalidRequestError:
            return False
        return re.findall("probe-[a-z]+", rendered) == [content for _, content in roles]


class _Generation(Extension):
    """`{% generation %}` marks the assistant's tokens for training; here only its body counts."""

    tags = {"generation"}  # noqa: RUF012 -- jinja2 declares it as a plain class attribute

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


def _tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Print JSON for a prompt: jinja's own filter would escape it for HTML."""
    return print_json(value, (ensure_ascii, indent, separators and (separators[0], separators[1]), sort_keys))


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)
