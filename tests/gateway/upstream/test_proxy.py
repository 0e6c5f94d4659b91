"""What crosses the gateway unchanged, what is changed, and what happens when either side fails."""

from __future__ import annotations

import asyncio
import json

import httpx
import openai
import pytest

from gateway.auth import Identity
from gateway.upstream.chat import INLINE_BYTES
from gateway.upstream.pool import Timeouts
from gateway.upstream.whole_events import MAX_HELD_BYTES
from tests.gateway.support.server import until
from tests.gateway.upstream.mock import ANSWER, BODY, STREAM, MockUpstream, Proxy, hanging_up, proxy_of

ODD_BODY = (
    b'{ "unheard_of": {"z": 1, "a": [1.50, 1e3]}, "stream":false ,\n"messages": [ {"content": "h\\u00e9", "role": "user",'
    b' "extra": 7} ], "top_k": null, "model":"m" }'
)


UNENDED = STREAM.removesuffix(b"data: [DONE]\n\n")


def sse(*pieces: bytes, **more: object) -> MockUpstream:
    return MockUpstream(pieces=pieces, content_type=b"text/event-stream", **more)  # type: ignore[arg-type]


def sdk_of(proxy: Proxy) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{proxy.client.base_url}/v1", api_key="none", max_retries=0)


async def metrics(client: httpx.AsyncClient) -> str:
    return (await client.get("/metrics")).text


async def test_both_bodies_cross_untouched_where_no_rule_fires() -> None:
    upstream = MockUpstream(pieces=[ANSWER[:7], ANSWER[7:]])
    async with proxy_of(upstream) as proxy:
        answer = await proxy.chat(ODD_BODY)
    assert upstream.bodies == [ODD_BODY]
    assert answer.content == ANSWER
    assert answer.headers["x-prefixgate-cache"] == "cached=4; prompt=9; rules=none"
    assert answer.headers["content-length"] == str(len(ANSWER))


async def test_a_rule_that_fires_has_the_canonical_body_sent() -> None:
    upstream = MockUpstream()
    body = {**BODY, "temperature": 0.5, "cache_salt": "mine", "new_field": {"b": 1, "a": 2}}
    async with proxy_of(upstream) as proxy:
        answer = await proxy.chat(body)
    del body["cache_salt"]
    assert upstream.bodies == [json.dumps(body, separators=(",", ":")).encode()]
    assert answer.headers["x-prefixgate-cache"].endswith("rules=overwrite_client_salt")


async def test_a_large_body_crosses_untouched_too() -> None:
    upstream = MockUpstream()
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "x " * INLINE_BYTES}]}).encode()
    async with proxy_of(upstream) as proxy:
        assert (await proxy.chat(body)).content == ANSWER
    assert upstream.bodies == [body]


async def test_messages_of_an_unknown_kind_are_the_upstreams_to_judge() -> None:
    upstream = MockUpstream()
    body = b'{"model":"m","messages":[{"role":"function","name":"f","content":"1"}]}'
    async with proxy_of(upstream) as proxy:
        answer = await proxy.chat(body)
    assert upstream.bodies == [body]
    assert answer.headers["x-prefixgate-cache"].endswith("rules=unread")


async def test_files_that_are_named_are_the_upstreams_to_know() -> None:
    """Also where a rule changes the body, which is printed anew then."""
    upstream = MockUpstream()
    part = {"type": "file", "file": {"file_id": "file-abc", "filename": "a"}, "detail": "low"}
    said = [{"role": "system", "content": "hi "}, {"role": "user", "content": [part, {"type": "text", "text": "hi"}]}]
    async with proxy_of(upstream) as proxy:
        answer = await proxy.chat(json.dumps({"model": "m", "messages": said}).encode())
    assert json.loads(upstream.bodies[0])["messages"] == [{"role": "system", "content": "hi"}, said[1]]
    assert answer.headers["x-prefixgate-cache"].endswith("rules=trim_end_of_system")


@pytest.mark.parametrize("size", [1, 3, 50, 10_000])
async def test_a_stream_crosses_byte_for_byte_in_whatever_pieces(size: int) -> None:
    upstream = sse(*(STREAM[start : start + size] for start in range(0, len(STREAM), size)))
    async with proxy_of(upstream) as proxy:
        answer = await proxy.chat({**BODY, "stream": True})
        shown = await metrics(proxy.client)
    assert answer.content == STREAM
    assert answer.headers["content-type"] == "text/event-stream"
    assert answer.headers["x-prefixgate-cache"] == "rules=none"
    assert "prefixgate_prompt_tokens_total 9.0" in shown
    assert "prefixgate_cached_tokens_total 4.0" in shown
    assert "prefixgate_generated_tokens_total 2.0" in shown
    assert 'prefixgate_time_to_first_token_seconds_count{cache="miss"} 1.0' in shown
    assert "prefixgate_saved_seconds" not in shown, "nobody knows them of an upstream"


async def test_an_upstreams_error_crosses_with_its_status_and_body() -> None:
    upstream = MockUpstream(status=429, pieces=[b'{"detail": "slow down"}'], headers=[(b"retry-after", b"7")])
    async with proxy_of(upstream) as proxy:
        answer = await proxy.chat()
        shown = await metrics(proxy.client)
    assert (answer.status_code, answer.content) == (429, b'{"detail": "slow down"}')
    assert answer.headers["retry-after"] == "7"
    assert 'status="429"' in shown
    assert "prefixgate_upstream_answers_without_usage_total 0.0" in shown


async def test_names_and_keys_of_a_request() -> None:
    upstream = MockUpstream(headers=[(b"x-request-id", b"theirs")])
    options = {"key": "sk-upstream", "headers": {"X-Org": "us"}}
    async with proxy_of(upstream, options=options) as proxy:
        answer = await proxy.chat(**{"x-request-id": "mine", "authorization": "Bearer client", "x-org": "them"})
    sent = dict(upstream.sent_headers[0])
    assert sent[b"authorization"] == b"Bearer sk-upstream"
    assert (sent[b"x-org"], sent[b"x-request-id"]) == (b"us", b"mine")
    assert answer.headers.get_list("x-request-id") == ["mine"]


async def test_no_upstream_is_503_in_our_shape() -> None:
    async with proxy_of(urls=["http://127.0.0.1:9"]) as proxy:
        answer = await proxy.chat()
        ready = await proxy.client.get("/ready")
    assert answer.status_code == 503
    assert answer.json()["error"]["code"] == "upstream_unreachable"
    assert answer.headers["retry-after"] == "5"
    assert ready.status_code == 503


async def test_an_upstream_that_cannot_be_reached_or_is_busy_has_the_next_one_asked() -> None:
    busy, free = MockUpstream(status=503), MockUpstream()
    async with proxy_of(busy, free, urls=["http://127.0.0.1:9"]) as proxy:
        for number in range(8):
            body = {"model": "m", "messages": [{"role": "user", "content": f"chat {number}"}]}
            assert (await proxy.chat(body)).status_code == 200
        assert proxy.pool.num_retries == len(busy.bodies) > 0
    assert len(free.bodies) == 8


async def test_where_all_are_busy_the_last_ones_answer_crosses() -> None:
    upstreams = [MockUpstream(status=503, pieces=[b"busy"], headers=[(b"retry-after", b"9")]) for _ in range(2)]
    async with proxy_of(*upstreams) as proxy:
        answer = await proxy.chat()
    assert (answer.status_code, answer.content, answer.headers["retry-after"]) == (503, b"busy", "9")
    assert [len(upstream.bodies) for upstream in upstreams] == [1, 1]


async def test_where_the_others_cannot_be_reached_the_busy_ones_answer_crosses() -> None:
    busy = MockUpstream(status=503, pieces=[b"busy"], headers=[(b"retry-after", b"9")])
    async with proxy_of(busy, urls=["http://127.0.0.1:9"]) as proxy:
        for upstream in proxy.pool.upstreams:  # whichever comes first
            order = [upstream, *(other for other in proxy.pool.upstreams if other is not upstream)]
            proxy.pool.order = lambda _, order=order: order  # type: ignore[method-assign, misc]
            answer = await proxy.chat()
            assert (answer.status_code, answer.content, answer.headers["retry-after"]) == (503, b"busy", "9")
        assert 'status="503"} 2.0' in await metrics(proxy.client)


@pytest.mark.parametrize("content_type", [b"text/html", b"text/event-stream"])
async def test_a_redirect_is_not_passed_on(content_type: bytes) -> None:
    upstream = MockUpstream(status=307, headers=[(b"location", b"http://elsewhere/v1")], content_type=content_type)
    async with proxy_of(upstream) as proxy:
        answer = await proxy.chat()
        upstream.models_status = 301
        listed = await proxy.client.get("/v1/models")
    assert [answer.status_code, listed.status_code] == [502, 502]
    assert "location" not in answer.headers
    assert "a redirect" in answer.json()["error"]["message"]


async def test_nothing_is_tried_again_once_an_upstream_may_have_begun() -> None:
    async with hanging_up() as first, hanging_up() as second, proxy_of(urls=[first.url, second.url]) as proxy:
        answer = await proxy.chat()
    assert (answer.status_code, answer.json()["error"]["code"]) == (502, "upstream_failed")
    assert first.num_chats + second.num_chats == 1


async def test_an_upstream_that_ends_late_keeps_no_client_waiting() -> None:
    upstream = sse(STREAM, b"", hangs_after=1)
    async with proxy_of(upstream, timeouts=Timeouts(idle=60)) as proxy:
        assert (await proxy.chat({**BODY, "stream": True})).content == STREAM
        assert "prefixgate_aborted_requests_total 0.0" in await metrics(proxy.client)


async def test_an_answer_that_breaks_off_is_502() -> None:
    async with proxy_of(MockUpstream(pieces=[ANSWER[:9], b""], breaks_after=1)) as proxy:
        assert (await proxy.chat()).status_code == 502


HALF = STREAM[: STREAM.index(b"\n\n") + 60]


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
@pytest.mark.parametrize("failure", ["breaks_after", "hangs_after"])
async def test_a_stream_that_ends_within_an_event_ends_with_the_error_behind_the_last_whole_one(
    failure: str, end: bytes
) -> None:
    half = HALF.replace(b"\n", end)
    whole = half[: half.index(end * 2) + 2 * len(end)]
    upstream = sse(half[:50], half[50:], b"", **{failure: 2})
    async with proxy_of(upstream, timeouts=Timeouts(idle=0.2)) as proxy:
        answer = await proxy.chat({**BODY, "stream": True})
    assert answer.status_code == 200
    assert answer.content.startswith(whole + b'data: {"error":')
    error = json.loads(answer.content.removeprefix(whole)[6:])["error"]
    assert error["code"] == {"breaks_after": "upstream_failed", "hangs_after": "upstream_timeout"}[failure]


@pytest.mark.parametrize("failure", ["breaks_after", "hangs_after", "stops"])
async def test_the_sdk_reads_the_error_of_a_stream_that_ends_within_an_event(failure: str) -> None:
    upstream = sse(HALF, b"", **({"hangs_after": 1} if failure == "stops" else {failure: 1}))
    timeouts = Timeouts(idle=60 if failure == "stops" else 0.2)
    async with proxy_of(upstream, timeouts=timeouts) as proxy, sdk_of(proxy) as sdk:
        stream = await sdk.chat.completions.create(**BODY, stream=True)
        assert (await anext(stream)).choices[0].delta.content == "hé"
        if failure == "stops":
            await proxy.pool.stop()
        with pytest.raises(openai.APIError, match=r"the upstream|the gateway ends"):
            await anext(stream)


async def test_an_event_that_is_too_long_to_be_held_is_passed_on_in_pieces() -> None:
    first = b"data: " + b"x" * MAX_HELD_BYTES
    async with proxy_of(sse(first, b"", breaks_after=1)) as proxy:
        answer = await proxy.chat({**BODY, "stream": True})
    assert answer.content.startswith(b"data: xxx")
    assert b'\n\ndata: {"error":' in answer.content


async def test_an_upstream_that_does_not_begin_in_time_is_504() -> None:
    upstream = MockUpstream(hangs_after=0)
    async with proxy_of(upstream, timeouts=Timeouts(first_byte=0.2)) as proxy:
        answer = await proxy.chat()
        await until(lambda: upstream.num_gone == 1)
    assert (answer.status_code, answer.json()["error"]["code"]) == (504, "upstream_timeout")


async def test_a_stream_that_falls_silent_ends_with_an_event() -> None:
    upstream = sse(UNENDED, b"", hangs_after=1)
    async with proxy_of(upstream, timeouts=Timeouts(idle=0.2)) as proxy:
        answer = await proxy.chat({**BODY, "stream": True})
        await until(lambda: upstream.num_gone == 1)
    assert answer.content.startswith(UNENDED + b"data: ")
    assert b"upstream_timeout" in answer.content


@pytest.mark.parametrize("begins", [True, False])
async def test_a_client_that_goes_away_ends_the_upstreams_request(begins: bool) -> None:
    upstream = sse(UNENDED, b"", hangs_after=int(begins))
    async with proxy_of(upstream) as proxy:
        asking = asyncio.create_task(proxy.chat({**BODY, "stream": True}))
        await until(lambda: upstream.bodies)
        asking.cancel()
        await until(lambda: upstream.num_gone == 1)
        await asyncio.sleep(0.05)
        assert "prefixgate_aborted_requests_total 1.0" in await metrics(proxy.client)


async def test_a_gateway_that_ends_tells_the_clients_of_running_streams() -> None:
    async with proxy_of(sse(UNENDED, b"", hangs_after=1)) as proxy:
        asking = asyncio.create_task(proxy.chat({**BODY, "stream": True}))
        await until(lambda: proxy.pool.limits._running)
        await asyncio.sleep(0.1)
        await proxy.pool.stop()
        assert b"the gateway ends" in (await asking).content


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"{}", b'{"model": 7}'])
async def test_a_body_that_names_no_model_is_400(body: bytes) -> None:
    upstream = MockUpstream()
    async with proxy_of(upstream) as proxy:
        assert (await proxy.chat(body)).status_code == 400
    assert upstream.bodies == []


class OneKey:
    def has_keys(self) -> bool:
        return True

    def identify(self, key: str) -> Identity | None:
        return Identity("t", models=frozenset({"m"})) if key == "good" else None


async def test_a_key_for_some_models_is_good_for_those_however_the_body_is_printed() -> None:
    upstream = MockUpstream()
    async with proxy_of(upstream, keys=OneKey()) as proxy:
        assert (await proxy.chat()).status_code == 401
        good = {"authorization": "Bearer good"}
        assert (await proxy.chat({**BODY, "model": "n"}, **good)).status_code == 403
        twice = b'{"mod\\u0065l":"n","messages":[{"role":"user","content":"hi"}],"model":"m"}'
        assert (await proxy.chat(twice, **good)).status_code == 200
        assert upstream.bodies[0] == b'{"model":"m","messages":[{"role":"user","content":"hi"}]}'
        listed = (await proxy.client.get("/v1/models", headers=good)).json()
        assert [model["id"] for model in listed["data"]] == ["m"]
        assert (await proxy.client.get("/v1/models/n", headers=good)).status_code == 403


async def test_models_cross_as_the_upstream_prints_them() -> None:
    async with proxy_of(MockUpstream()) as proxy:
        listed = await proxy.client.get("/v1/models")
        assert listed.content == b'{ "object":"list", "data":[{"id":"m"},{"id":"n"}] }'
        assert (await proxy.client.get("/v1/models/m")).content == b'{"id": "m"}'


async def test_ready_follows_the_upstreams() -> None:
    upstream = MockUpstream(models_status=503)
    async with proxy_of(upstream) as proxy:
        assert (await proxy.client.get("/ready")).status_code == 503
        upstream.models_status = 200
        await until(proxy.pool.ready)
        assert (await proxy.client.get("/ready")).status_code == 200
        assert "prefixgate_upstream_up{" in await metrics(proxy.client)
        assert (await proxy.client.get("/version")).json()["upstreams"] == 1
        assert (await proxy.client.post("/v1/audio/speech")).status_code == 404
