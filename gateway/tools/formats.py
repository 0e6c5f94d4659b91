"""The ways in which models write calls: a small table, and which one a chat template speaks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CallFormat:
    """How one family of models writes calls; each is an object with a name and arguments."""

    opening: str
    """Stands before the first call."""
    closing: str = ""
    """Stands behind the last one, where the model does not forget it."""
    separator: str = ""
    """Between two calls behind one opening; none: each call has its own."""
    is_list: bool = False
    """The calls are a JSON array."""
    may_be_bare: bool = False
    """Without the opening, an object at the very beginning that calls a tool of the request is a call, too."""
    arguments: str = "arguments"
    """The name of that field; reading takes any."""
    blank: str = ""
    """What the model's template writes between a mark and an object."""
    id_chars: int = 0
    """Length of ids that the template insists on; 0: it takes any."""


FORMATS: Mapping[str, CallFormat] = {
    "hermes": CallFormat("<tool_call>", "</tool_call>", blank="\n"),
    "llama3": CallFormat("<|python_tag|>", separator=";", may_be_bare=True, arguments="parameters"),
    "mistral": CallFormat("[TOOL_CALLS]", "]", separator=",", is_list=True, id_chars=9),
}


def format_of(template: str) -> str | None:
    """Find the format that a chat template prints calls in; None: none of these."""
    if "[TOOL_CALLS]" in template and "[ARGS]" not in template:
        return "mistral"
    if "<tool_call>" in template and "<function=" not in template:
        return "hermes"
    speaks_llama = "<|python_tag|>" in template or ("<|start_header_id|>" in template and '"parameters"' in template)
    return "llama3" if speaks_llama else None
