"""Who may share with whom is the gateway's to say."""

from __future__ import annotations

from dataclasses import replace

from gateway.conversation import Conversation
from gateway.normalize.rule import Rule, safe

FIELD = "cache_salt"


def overwrite_client_salt() -> Rule:
    """Drop a client's `cache_salt`: the salt is the scope of who is authenticated."""

    def apply(conversation: Conversation) -> Conversation:
        if FIELD not in conversation.fields:
            return conversation
        fields = {name: value for name, value in conversation.fields.items() if name != FIELD}
        return replace(conversation, fields=fields)

    return safe("overwrite_client_salt", 1, apply, by_region=True)
