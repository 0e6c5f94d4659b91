"""Lists in the system text that an operator declared to be sets."""

from __future__ import annotations

import re

from gateway.conversation import Content
from gateway.normalize.head_text import change_head, change_outside_fences
from gateway.normalize.params import strings
from gateway.normalize.rule import Apply, Params, Rule, RuleClass, refuse_others
from gateway.normalize.tags import find_blocks

_FIRST = re.compile(r"[ \t]*(?:[-*+\u2022][ \t]+)?")
_NUMBERED = re.compile(r"[ \t]*(?:\d+|[A-Za-z])[.)]\s")


def sort_tagged_lists() -> Rule:
    """Sort the entries of the blocks whose tags are given, in system text outside fences.

    Parameter `tags`: names, without brackets. An entry begins like the first one of its block (same indent, same
    bullet) and goes on until the next. A numbered list is an order, whatever tag it stands in, and so is a list with
    empty lines in it, for nobody knows which entry they belong to.
    """

    def build(params: Params) -> Apply:
        refuse_others(params, ("tags",))
        tags = strings(params, "tags", least=1)

        def sort_run(run: str) -> str:
            pieces, end = [], 0
            for block in find_blocks(run, tags):
                pieces += [run[end : block.inner_start], _sorted(run[block.inner_start : block.inner_end])]
                end = block.inner_end
            return "".join([*pieces, run[end:]])

        def apply(content: Content) -> Content:
            return change_outside_fences(content, sort_run)

        change = change_head(apply)
        return lambda conversation, _: change(conversation)

    return Rule("sort_tagged_lists", 1, RuleClass.OPT_IN, build, by_region=True)


def _sorted(block: str) -> str:
    """Sort what is between the tags; lines stay whole."""
    lines = block.split("\n")
    if len(lines) < 3 or lines[0].strip() or lines[-1].strip():
        return block  # the tags have to stand on lines of their own
    first, *inner, last = lines
    if not inner or _NUMBERED.match(inner[0]) or not all(line.strip() for line in inner):
        return block
    mark = _FIRST.match(inner[0])
    begin = mark[0] if mark else ""
    entries: list[list[str]] = []
    for line in inner:
        rest = line.removeprefix(begin)
        begins = line.startswith(begin) and not rest[:1].isspace() and not rest.startswith("</")
        if begins or not entries:
            entries.append([])
        entries[-1].append(line)
    return "\n".join([first, *("\n".join(entry) for entry in sorted(entries)), last])
