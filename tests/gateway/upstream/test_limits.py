"""Limits in front of upstreams: reserved by what a body looks like, settled by what the upstream tells."""

from __future__ import annotations

from tests.gateway.upstream.mock import BODY, STREAM, MockUpstream, proxy_of

LEFT = "x-ratelimit-remaining-tokens"
SMALL = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


async def test_requests_beyond_the_limit_are_429_and_never_sent() -> None:
    upstream = MockUpstream(headers=[(b"x-ratelimit-remaining-requests", b"99")])
    async with proxy_of(upstream, limit_requests_per_minute=1) as proxy:
        answer = await proxy.chat()
        refused = await proxy.chat()
    assert answer.headers.get_list("x-ratelimit-remaining-requests") == ["0"]
    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "rate_limit_exceeded")
    assert int(refused.headers["retry-after"]) >= 1
    assert len(upstream.bodies) == 1


async def test_told_tokens_count_in_the_place_of_those_that_were_reserved() -> None:
    async with proxy_of(MockUpstream(), limit_tokens_per_minute=1000) as proxy:
        assert [(await proxy.chat({**SMALL, "max_tokens": 900})).headers[LEFT] for _ in range(2)] == ["989", "978"]
        assert (await proxy.chat({**SMALL, "max_tokens": 970})).status_code == 429


async def test_an_answer_that_tells_nothing_counts_as_reserved_and_an_error_does_not_count() -> None:
    upstream = MockUpstream(pieces=[b"{}"])
    async with proxy_of(upstream, limit_tokens_per_minute=1000) as proxy:
        assert (await proxy.chat({**SMALL, "max_tokens": 500})).status_code == 200
        upstream.status = 400
        failed = await proxy.chat({**SMALL, "max_tokens": 450})
        assert 450 < int(failed.headers[LEFT]) < 500


async def test_a_stream_gives_back_what_it_did_not_use() -> None:
    upstream = MockUpstream(pieces=[STREAM], content_type=b"text/event-stream")
    async with proxy_of(upstream, limit_tokens_per_minute=1000, limit_concurrency=1) as proxy:
        for _ in range(3):
            assert (await proxy.chat({**BODY, "stream": True, "max_tokens": 900})).status_code == 200
