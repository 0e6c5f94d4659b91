"""The rules that are built in, in their order."""

from __future__ import annotations

from gateway.normalize.content_form import single_part_to_string
from gateway.normalize.registry import RuleRegistry
from gateway.normalize.system_text import crlf_to_lf_system, drop_leading_bom, trim_end_of_system


def built_in_rules() -> RuleRegistry:
    """Build the registry of all rules, on by default or not.

    Trimming comes before line ends: it decides what is a fence, for an indented fence sign at the very start is one
    only after the indent is gone.
    """
    return RuleRegistry([single_part_to_string(), drop_leading_bom(), trim_end_of_system(), crlf_to_lf_system()])
