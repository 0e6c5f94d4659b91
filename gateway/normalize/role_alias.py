"""Two names for one role, where a model knows no difference."""

from __future__ import annotations

from dataclasses import replace

from gateway.conversation import Conversation
from gateway.normalize.params import string
from gateway.normalize.rule import Apply, Params, Rule, RuleClass, refuse_others

_ROLES = ("system", "developer")


def role_alias() -> Rule:
    """Give the leading system and developer messages one role.

    Parameter `role`: `system` (default) or `developer`, whichever the model's template knows.
    """

    def build(params: Params) -> Apply:
        refuse_others(params, ("role",))
        role = string("params.role", params.get("role", "system"), _ROLES)

        def apply(conversation: Conversation, _: object) -> Conversation:
            count = conversation.num_head_messages
            head = conversation.messages[:count]
            if all(message.role == role for message in head):
                return conversation
            renamed = tuple(replace(message, role=role) for message in head)
            return replace(conversation, messages=renamed + conversation.messages[count:])

        return apply

    return Rule("role_alias", 1, RuleClass.OPT_IN, build, by_region=True)
