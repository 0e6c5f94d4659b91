"""Rules for characters of the system text that look alike and are encoded differently. Compatibility is never folded."""

from __future__ import annotations

import re
import unicodedata

from gateway.conversation import Content
from gateway.normalize.head_text import NO_BREAK_SPACES, change_head, change_outside_fences
from gateway.normalize.rule import Rule, opt_in

_NO_BREAK_SPACES = re.compile(f"[{NO_BREAK_SPACES}][{NO_BREAK_SPACES} ]*(?P<fence>```|~~~)?")
"""A run of them, and whether it keeps a line from being a fence; each character is looked at once."""
_BECOME_SIGNS = re.compile("([\u1fef\u037e])")
"""Their composed forms are a backtick and a semicolon: they stay, or texts would become fences and headers."""


def nfc_system() -> Rule:
    """Compose the system text (Unicode NFC), outside fences: the same letters in one encoding."""

    def compose(run: str) -> str:
        if unicodedata.is_normalized("NFC", run):
            return run
        pieces = _BECOME_SIGNS.split(run)
        return "".join(piece if _BECOME_SIGNS.match(piece) else unicodedata.normalize("NFC", piece) for piece in pieces)

    def apply(content: Content) -> Content:
        return change_outside_fences(content, compose)

    return opt_in("nfc_system", 1, change_head(apply), by_region=True)


def nbsp_to_space_system() -> Rule:
    """Write no-break spaces of the system text, outside fences, as blanks; joiners and other invisible signs stay."""

    def apply(content: Content) -> Content:
        return change_outside_fences(content, lambda run: _NO_BREAK_SPACES.sub(_as_blanks, run))

    return opt_in("nbsp_to_space_system", 1, change_head(apply), by_region=True)


def _as_blanks(run: re.Match[str]) -> str:
    return run[0] if run["fence"] else " " * len(run[0])
