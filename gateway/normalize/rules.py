"""The rules that are built in, in their order."""

from __future__ import annotations

from gateway.normalize.cache_markers import strip_cache_markers
from gateway.normalize.cache_salt import overwrite_client_salt
from gateway.normalize.client_header import strip_client_header
from gateway.normalize.content_form import one_empty_content_form, single_part_to_string
from gateway.normalize.message_fields import drop_null_message_fields
from gateway.normalize.registry import RuleRegistry
from gateway.normalize.system_text import crlf_to_lf_system, drop_leading_bom, trim_end_of_system
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
    ("drop_leading_bom", "strip_client_header"),
    ("trim_end_of_system", "strip_client_header"),
    ("trim_end_of_system", "drop_leading_bom"),
    ("crlf_to_lf_system", "trim_end_of_system"),
)
"""(a rule, one before it): the only pairs whose order makes a difference.

What stands beside a text decides whether it is the only part, and whether a part that held a header alone may go. What
goes from the start lays open what trimming drops. Trimming decides what is a fence, for an indented fence sign at the
very start is one only after the indent is gone.
"""


def built_in_rules() -> RuleRegistry:
    """Build the registry of all rules, on by default or not."""
    return RuleRegistry(
        [
            strip_cache_markers(),
            drop_null_message_fields(),
            strip_client_header(),
            single_part_to_string(),
            one_empty_content_form(),
            drop_leading_bom(),
            trim_end_of_system(),
            crlf_to_lf_system(),
            drop_empty_tools(),
            drop_unset_tool_fields(),
            canonical_schema_keywords(),
            sort_set_like_arrays(),
            canonical_tool_order(),
            order_tool_results_by_call(),
            overwrite_client_salt(),
        ]
    )
