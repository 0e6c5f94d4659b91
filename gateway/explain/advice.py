"""Which rule would have made a prompt and the nearest cached text agree. Pure; it names no rule that it cannot check.

A rule is tried on the few characters that an explanation shows, so what it says holds for those: a second difference
further on is another miss.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gateway.conversation import Conversation, Message, texts_of
from gateway.explain.difference import Difference, common_length
from gateway.explain.places import Kind
from gateway.normalize.client_header import strip_client_header
from gateway.normalize.rule import Context, Mode, Rule
from gateway.normalize.system_text import crlf_to_lf_system, drop_leading_bom, trim_end_of_system
from gateway.normalize.volatile_kinds import KINDS

_MIN_CHARS = 4
"""Equal characters behind the difference; fewer prove nothing."""


@dataclass(frozen=True, slots=True)
class Case:
    """One miss."""

    kind: Kind
    difference: Difference
    has_same_tools: bool
    """Both prompts have tools of the same names, in another order."""


def helpful_rule(case: Case, modes: Mapping[str, Mode]) -> str | None:
    """Name the first rule that is not on and would have made both sides equal.

    Args:
        case: the miss.
        modes: rule name -> how it runs for this tenant and route; a rule that is not there does not exist.
    """
    for name, kinds, helps in _ADVICE:
        if case.kind in kinds and modes.get(name, Mode.ON) is not Mode.ON and helps(case):
            return name
    return None


def _agree(case: Case, change: Callable[[str], str]) -> bool:
    """Whether both sides are equal once they are changed, as far as they are shown."""
    difference = case.difference
    prompt, cached = change(difference.prompt_part), change(difference.cached_part)
    if difference.is_whole:
        return prompt == cached
    size = min(len(prompt), len(cached))
    behind = size - common_length(difference.prompt_part, difference.cached_part)
    return prompt[:size] == cached[:size] and behind >= _MIN_CHARS


def _by_system_rule(rule: Rule) -> Callable[[Case], bool]:
    """Try the rule itself on both sides as system text."""
    apply = rule.build({})

    def change(text: str) -> str:
        changed = apply(Conversation((Message("system", text),)), Context())
        return "".join(texts_of(changed.messages[0].content)) if changed.messages else ""

    return lambda case: _agree(case, change)


def _without_volatile(text: str) -> str:
    for kind, pattern in KINDS.items():
        text = pattern.sub(f"<{kind}>", text)
    return text


_CALL_ID = re.compile(r"\b(?:call|toolu|tool|fc|chatcmpl-tool)[-_][\w-]{4,128}")
_REASONING = re.compile(r"<think>.*?(?:</think>\s*|\Z)", re.DOTALL)
_JSON_SPACE = re.compile(r"\s*([{}\[\],:])\s*")


def _lacks_reasoning(case: Case) -> bool:
    """The cached turn began with thoughts and the prompt's does not; they may be longer than what is shown."""
    cached, prompt = case.difference.cached_part, case.difference.prompt_part
    if not cached.lstrip().startswith("<think>") or "<think>" in prompt:
        return False
    rest = _REASONING.sub("", cached).strip()
    return not rest or prompt.strip().startswith(rest[: len(prompt)]) or rest.startswith(prompt.strip())


def _is_echo(case: Case) -> bool:
    """An assistant turn that came back with other white space at its end or in its arguments."""
    if case.difference.is_whole and _agree(case, str.rstrip):
        return True
    return "{" in case.difference.cached_part and _agree(case, lambda text: _JSON_SPACE.sub(r"\1", text))


_HEAD = frozenset({Kind.SYSTEM})
_ANSWER = frozenset({Kind.ASSISTANT})
_ADVICE: tuple[tuple[str, frozenset[Kind], Callable[[Case], bool]], ...] = (
    *(
        (rule.name, _HEAD, _by_system_rule(rule))
        for rule in (strip_client_header(), drop_leading_bom(), trim_end_of_system(), crlf_to_lf_system())
    ),
    ("relocate_volatile", _HEAD | {Kind.TOOLS}, lambda case: _agree(case, _without_volatile)),
    ("canonical_tool_order", frozenset({Kind.TOOLS}), lambda case: case.has_same_tools),
    ("reasoning_restore", _ANSWER, _lacks_reasoning),
    ("canonical_call_ids", _ANSWER | {Kind.TOOL}, lambda case: _agree(case, lambda t: _CALL_ID.sub("<id>", t))),
    ("echo_repair", _ANSWER, _is_echo),
)
"""(rule, where it works, whether it helps), in the order in which they are tried."""
