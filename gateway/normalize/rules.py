"""The rules that are built in, in their order."""

from __future__ import annotations

from gateway.context.rule import context_policy
from gateway.normalize.cache_markers import strip_cache_markers
from gateway.normalize.cache_salt import overwrite_client_salt
from gateway.normalize.call_ids import canonical_call_ids
from gateway.normalize.characters import nbsp_to_space_system, nfc_system
from gateway.normalize.client_header import strip_client_header
from gateway.normalize.content_form import one_empty_content_form, single_part_to_string
from gateway.normalize.echo_repair import echo_repair
from gateway.normalize.first_seen import first_seen
from gateway.normalize.image_digest import image_digest
from gateway.normalize.message_fields import drop_null_message_fields
from gateway.normalize.reasoning import reasoning_restore
from gateway.normalize.registry import RuleRegistry
from gateway.normalize.relocate_volatile import relocate_volatile
from gateway.normalize.role_alias import role_alias
from gateway.normalize.rule import Mode
from gateway.normalize.system_text import crlf_to_lf_system, drop_leading_bom, trim_end_of_system
from gateway.normalize.tagged_lists import sort_tagged_lists
from gateway.normalize.tool_fields import drop_empty_tools, drop_unset_tool_fields
from gateway.normalize.tool_order import canonical_tool_order
from gateway.normalize.tool_results import order_tool_results_by_call
from gateway.normalize.tool_schema import canonical_schema_keywords, sort_set_like_arrays

MUST_FOLLOW = (
    ("strip_client_header", "strip_cache_markers"),
    ("single_part_to_string", "strip_cache_markers"),
    ("single_part_to_string", "drop_null_message_fields"),
    ("single_part_to_string", "strip_client_header"),
    ("one_empty_content_form", "drop_null_message_fields"),
    ("one_empty_content_form", "single_part_to_string"),
    ("nbsp_to_space_system", "strip_client_header"),
    ("drop_leading_bom", "strip_client_header"),
    ("drop_leading_bom", "nbsp_to_space_system"),
    ("trim_end_of_system", "drop_leading_bom"),
    ("crlf_to_lf_system", "trim_end_of_system"),
    ("sort_tagged_lists", "nfc_system"),
    ("sort_tagged_lists", "crlf_to_lf_system"),
)
"""(a rule, one before it): the only pairs of region rules whose order makes a difference.

What stands beside a text decides whether it is the only part, and whether a part that held a header alone may go. What
goes from the start lays open what comes next. Trimming decides what is a fence, for an indented fence sign at the very
start is one only after the indent is gone. Lines are sorted when their characters are final.
"""


def built_in_rules(context_mode: Mode = Mode.OFF) -> RuleRegistry:
    """Build the registry of all rules, on by default or not.

    Args:
        context_mode: of the context policy where nobody chose another one.

    What gives turns back comes behind all that changes their place: a turn is remembered at its place in the canonical
    conversation, the head included. Ids count in no place, and are numbered last: a template may demand their shape.
    """
    return RuleRegistry(
        [
            strip_cache_markers(),
            drop_null_message_fields(),
            strip_client_header(),
            single_part_to_string(),
            one_empty_content_form(),
            role_alias(),
            nfc_system(),
            nbsp_to_space_system(),
            drop_leading_bom(),
            trim_end_of_system(),
            crlf_to_lf_system(),
            sort_tagged_lists(),
            drop_empty_tools(),
            drop_unset_tool_fields(),
            canonical_schema_keywords(),
            sort_set_like_arrays(),
            canonical_tool_order(),
            order_tool_results_by_call(),
            overwrite_client_salt(),
            image_digest(),
            relocate_volatile(),
            first_seen(),
            echo_repair(),
            reasoning_restore(),
            canonical_call_ids(),
            context_policy(context_mode),
        ]
    )
