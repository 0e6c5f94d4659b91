"""Brings the GBNF of llama.cpp into Lark, by llguidance's own parser, and mends what that prints wrong.

Source: llama.cpp, grammars/README.md; llguidance, docs/syntax.md.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from llguidance.gbnf_to_lark import ASTNode, GrammarParser, RepetitionNode, resolve

_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|.)", re.DOTALL)
_SURROGATES = range(0xD800, 0xE000)
_KEEPS_ITS_BACKSLASH = '"\\[]'


def lark_of(text: str) -> str:
    """Write a grammar in Lark.

    Raises: Exception: it is no GBNF; llguidance raises just that.
    """
    rules = GrammarParser().parse(_ESCAPE.sub(_character, text))
    resolve(rules)
    for rule in rules.values():
        _group_repetitions(rule)
    ordered = sorted(rules.values(), key=lambda rule: rule.order)
    return "\n".join(["%llguidance {}", *map(str, ordered)]) + "\n"


@dataclass
class _Group(ASTNode):
    """What is repeated once more: `("a"{2}){3}` is no `"a"{2}{3}`."""

    node: ASTNode

    def __str__(self) -> str:
        return f"({self.node})"

    def children(self) -> list[ASTNode]:
        return [self.node]


def _group_repetitions(root: ASTNode) -> None:
    nodes = [root]
    while nodes:
        node = nodes.pop()
        nodes += node.children()
        if isinstance(node, RepetitionNode) and isinstance(node.node, RepetitionNode):
            node.node = _Group(node.node)


def _character(escape: re.Match[str]) -> str:
    """Give what a code point stands for, as llguidance reads none of them."""
    digits = escape[1] or escape[2]
    if digits is None:
        return escape[0]
    code = int(digits, 16)
    if code in _SURROGATES:
        raise ValueError(f"{escape[0]} is no character")
    if code < 0x20 or code in map(ord, "-^/"):
        return f"\\x{code:02x}"
    character = chr(code)
    return f"\\{character}" if character in _KEEPS_ITS_BACKSLASH else character
