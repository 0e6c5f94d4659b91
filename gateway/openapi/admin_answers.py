"""What the admin API gives back."""

from __future__ import annotations

from gateway.openapi.context import CONTEXT_RECORD
from gateway.openapi.schema import COUNT, FLAG, OBJECT, TEXT, TIME, Schema, answer, array, nullable, one_of

_KEY: dict[str, Schema] = {
    "id": TEXT,
    "tenant": TEXT,
    "name": nullable(TEXT),
    "hint": TEXT,
    "models": nullable(array(TEXT)),
    "limits": OBJECT,
    "state": TEXT,
    "created_at": TIME,
    "expires_at": nullable(TIME),
    "revoked_at": nullable(TIME),
}

_BLOCKS: dict[str, Schema] = dict.fromkeys(
    (
        "total_blocks",
        "free_blocks",
        "cached_blocks",
        "active_blocks",
        "active_private_blocks",
        "active_shared_blocks",
        "shared_blocks",
        "pinned_blocks",
        "shared_blocks_max",
        "pinned_blocks_max",
        "shared_blocks_limit",
        "pinned_blocks_limit",
    ),
    COUNT,
)
_BY_LANE = answer(short=COUNT, long=COUNT)

ADMIN_ANSWERS: dict[str, Schema] = {
    "Page": answer(object=one_of("list"), data=array(OBJECT), has_more=FLAG, next_cursor=nullable(TEXT)),
    "Tenant": answer(id=TEXT, name=TEXT, limits=OBJECT, created_at=TIME),
    "Key": answer(**_KEY),
    "NewKey": answer(key=TEXT, **_KEY),
    "Prompt": answer(
        id=TEXT, name=TEXT, scope=TEXT, active_version=nullable(COUNT), created_at=TIME, warm=nullable(OBJECT)
    ),
    "PromptVersion": answer(
        version=COUNT, slots=array(TEXT), rules=OBJECT, retention=OBJECT, num_tokens=COUNT, created_at=TIME
    ),
    "Rules": answer(object=one_of("list"), data=array(OBJECT), choices=array(OBJECT)),
    "RuleChoice": answer(tenant=TEXT, route=TEXT, rule=TEXT),
    "Cache": answer(
        **_BLOCKS,
        num_running=COUNT,
        num_waiting=COUNT,
        running=_BY_LANE,
        waiting=_BY_LANE,
        counters=OBJECT,
        options=OBJECT,
    ),
    "CacheOptions": answer(max_shared_ratio={"type": "number"}, growth_reserve=COUNT),
    "Config": answer(changeable=array(TEXT), rules=OBJECT, chat_template_check=OBJECT),
    "RequestBlocks": answer(id=TEXT, status=TEXT, blocks=array(OBJECT), num_prompt_tokens=COUNT),
    "DryRun": answer(
        canonical=OBJECT,
        token_ids=nullable(array(COUNT)),
        render_error=nullable(TEXT),
        regions=array(answer(owner=TEXT, start=COUNT, end=COUNT)),
        rules=array(
            answer(
                name=TEXT,
                version=COUNT,
                mode=one_of("off", "audit", "on"),
                fired=FLAG,
                detail=nullable(TEXT),
                **{"class": TEXT},
            )
        ),
        context_management=CONTEXT_RECORD,
        scope=TEXT,
    ),
    "LoggedRequest": answer(created_at=TIME, tenant=TEXT, context_management=CONTEXT_RECORD),
    "Difference": {
        "type": "object",
        "required": ["id", "from", "to", "diff"],
        "properties": {"id": TEXT, "from": COUNT, "to": COUNT, "diff": TEXT},
    },
    "Drift": answer(id=TEXT, version=nullable(COUNT), variants=array(OBJECT)),
    "DashboardSession": answer(expires_at=nullable(TIME), secure=FLAG, enabled=FLAG),
    "Object": OBJECT,
}
