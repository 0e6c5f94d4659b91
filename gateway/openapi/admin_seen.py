"""What the pages of the dashboard read: the answers of the admin API that sum up what happens."""

from __future__ import annotations

from gateway.openapi.schema import COUNT, OBJECT, TEXT, TIME, Schema, answer, array, nullable, number, one_of

_SHARE = nullable(number(0, 1))
_SECONDS: Schema = nullable({"type": "number", "minimum": 0})
_COUNT = nullable(COUNT)
_LANES = answer(short=COUNT, long=COUNT)
_QUANTILES = answer(count=COUNT, p50=_SECONDS, p95=_SECONDS)

OVERVIEW: Schema = answer(
    object=one_of("overview"),
    at=TIME,
    started_at=TIME,
    version=TEXT,
    model=nullable(TEXT),
    mode=one_of("engine", "upstream"),
    engine=answer(state=TEXT),
    tokens=answer(prompt=COUNT, cached=COUNT, generated=COUNT, hit_rate=_SHARE),
    maximum=nullable(
        answer(
            sampling=number(0, 1),
            prompt_tokens=COUNT,
            cached_tokens=_COUNT,
            possible_tokens=_COUNT,
            hit_rate=_SHARE,
            max_hit_rate=_SHARE,
            evicted_blocks=_COUNT,
        )
    ),
    saved=answer(tokens=COUNT, seconds=_SECONDS, device=nullable(TEXT)),
    first_token_seconds=answer(hit=_QUANTILES, miss=_QUANTILES),
    cache=nullable(
        answer(
            total_blocks=_COUNT,
            free_blocks=_COUNT,
            cached_blocks=_COUNT,
            active_private_blocks=_COUNT,
            active_shared_blocks=_COUNT,
            pinned_blocks=_COUNT,
            shared_blocks=_COUNT,
            shared_blocks_limit=_COUNT,
            pinned_blocks_limit=_COUNT,
            block_size=COUNT,
            block_bytes=_COUNT,
            evicted_blocks=_COUNT,
        )
    ),
    context=nullable(
        answer(requests=COUNT, edited_requests=COUNT, cuts=COUNT, cleared_tokens={"type": "integer"}),
    ),
    requests=nullable(answer(running=_LANES, waiting=_LANES)),
    num_logged_requests=_COUNT,
    problems=array(
        answer(severity=one_of("error", "warning", "info"), code=TEXT, text=TEXT, view=nullable(TEXT)),
    ),
)

EVENTS: Schema = {
    "type": "object",
    "required": ["event", "data"],
    "properties": {"event": one_of("overview"), "data": TEXT},
    "description": "The data of each event is an Overview.",
}

USAGE: Schema = answer(
    object=one_of("list"),
    data=array(
        answer(
            tenant=TEXT,
            name=TEXT,
            requests=_COUNT,
            errors=_COUNT,
            prompt_tokens=_COUNT,
            cached_tokens=_COUNT,
            output_tokens=_COUNT,
            hit_rate=_SHARE,
            limits=OBJECT,
            used=OBJECT,
            cache_blocks=_COUNT,
            cache_share=_SHARE,
            last_used_at=nullable(TIME),
        )
    ),
)

LOSSES: Schema = answer(
    object=one_of("losses"),
    since=TIME,
    until=TIME,
    sampling=_SHARE,
    prompt_tokens=_COUNT,
    possible_tokens=_COUNT,
    cached_tokens=_COUNT,
    unseen_tokens=_COUNT,
    lost=array(answer(reason=TEXT, region=TEXT, tokens={"type": "integer"})),
    larger_pool=array(answer(blocks=COUNT, tokens=COUNT)),
    top=array(
        answer(
            request_id=TEXT,
            completion_id=TEXT,
            at=TIME,
            tenant=TEXT,
            reason=TEXT,
            region=TEXT,
            lost_tokens=COUNT,
            prompt_tokens=COUNT,
        )
    ),
)

_SUMMARY = answer(count=COUNT, p50=_SECONDS, p95=_SECONDS)
SERIES: Schema = answer(
    object=one_of("series"),
    since=TIME,
    until=TIME,
    step=COUNT,
    points=array(
        answer(
            at=TIME,
            requests=COUNT,
            errors=COUNT,
            prompt_tokens=_COUNT,
            cached_tokens=_COUNT,
            sampled_prompt_tokens=_COUNT,
            sampled_cached_tokens=_COUNT,
            possible_tokens=_COUNT,
            first_token_seconds=answer(hit=_SUMMARY, miss=_SUMMARY),
        )
    ),
)

ADMIN_SEEN: dict[str, Schema] = {
    "Overview": OVERVIEW,
    "Losses": LOSSES,
    "Series": SERIES,
    "TenantUsage": USAGE,
    "Changes": answer(id=TEXT, rules=array(TEXT), diff=TEXT),
}
