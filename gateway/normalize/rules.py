"""The rules that are built in, in their order."""

from __future__ import annotations

from gateway.normalize.content_form import single_part_to_string
from gateway.normalize.echo_repair import echo_repair
from gateway.normalize.first_seen import first_seen
from gateway.normalize.reasoning import reasoning_restore
from gateway.normalize.registry import RuleRegistry
from gateway.normalize.system_text import crlf_to_lf_system, drop_leading_bom, trim_end_of_system


def built_in_rules() -> RuleRegistry:
    """Build the registry of all rules, on by default or not.

    Trimming comes before line ends: it decides what is a fence, for an indented fence sign at the very start is one
    only after the indent is gone. What gives turns back comes after all that changes what was said before a turn, the
    head included: a turn is remembered at its place in the canonical conversation.
    """
    return RuleRegistry(
        [
            single_part_to_string(),
            drop_leading_bom(),
            trim_end_of_system(),
            crlf_to_lf_system(),
            first_seen(),
            echo_repair(),
            reasoning_restore(),
        ]
    )
