from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from gateway.auth import Identity
from gateway.normalize.memory import TurnMemory
from gateway.normalize.modes import RuleModes
from gateway.normalize.rules import built_in_rules
from gateway.threads import PromptThreads
from gateway.upstream.chat import UpstreamIngress, parse_body
from gateway.upstream.endpoints import CHAT
from gateway.upstream.options import UpstreamOptions
from gateway.upstream.pool import FREE_REQUESTS, UpstreamPool

URLS = [f"http://replica-{number}:8000" for number in range(4)]


def pool_of(*urls: str) -> UpstreamPool:
    pool = UpstreamPool([UpstreamOptions(url=url) for url in urls])
    for upstream in pool.upstreams:
        upstream.is_up = True
    return pool


POOL = pool_of(*URLS)
FEWER = pool_of(*URLS[:3])


def names(pool: UpstreamPool, key: bytes) -> list[str]:
    return [upstream.name for upstream in pool.order(key)]


@given(st.binary())
def test_only_the_keys_of_an_upstream_that_is_taken_out_move(key: bytes) -> None:
    assert [name for name in names(POOL, key) if "replica-3" not in name] == names(FEWER, key)


def test_keys_are_spread() -> None:
    firsts = [names(POOL, b"%d" % number)[0] for number in range(400)]
    assert all(50 < firsts.count(f"{url}/v1") < 150 for url in URLS)


def test_an_upstream_that_does_not_answer_is_tried_last() -> None:
    pool = pool_of(*URLS)
    first, *others = pool.order(b"key")
    first.is_up = False
    assert pool.order(b"key") == [*others, first]


async def affinity(system: str | None, *turns: str, tenant: str = "t") -> bytes:
    ingress = UpstreamIngress(RuleModes(built_in_rules()), PromptThreads(), TurnMemory())
    head = [] if system is None else [{"role": "system", "content": system}]
    body = {"model": "m", "messages": [*head, *({"role": "user", "content": turn} for turn in turns)]}
    chat = parse_body(json.dumps(body).encode())
    return (await ingress.prepare(chat, endpoint=CHAT, identity=Identity(tenant))).affinity


async def test_chats_with_the_same_canonical_head_meet() -> None:
    assert await affinity("Be kind.", "a") == await affinity("Be kind.\r\n", "b", "c")
    assert await affinity("Be kind.", "a") != await affinity("Be brief.", "a")
    assert await affinity("Be kind.", "a") != await affinity("Be kind.", "a", tenant="u")


async def test_a_chat_without_a_head_stays_where_its_first_turn_led_it() -> None:
    assert await affinity(None, "a") == await affinity(None, "a", "b")
    assert await affinity(None, "a") != await affinity(None, "b")


def test_an_upstream_that_has_far_more_to_do_than_the_others_is_asked_later() -> None:
    pool = UpstreamPool([UpstreamOptions(url=f"http://host{number}") for number in range(3)])
    for upstream in pool.upstreams:
        upstream.is_up = True
    first, second, _ = pool.order(b"key")
    first.num_in_flight = FREE_REQUESTS + 1
    assert pool.order(b"key")[0] is first
    first.num_in_flight = 3 * FREE_REQUESTS
    assert pool.order(b"key")[0] is second
    assert pool.order(b"key")[-1] is first
    for upstream in pool.upstreams:
        upstream.num_in_flight = 3 * FREE_REQUESTS
    assert pool.order(b"key")[0] is first
