"""The cases of cache misses, sent through a gateway in front of some engine: what fired, and what the engine reused."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import httpx

from tests.gateway.support.cases import ALL, Case, load_cases

ROUTE = "/v1/chat/completions"
NEEDS_ANSWERS = frozenset({"echo_repair", "reasoning_restore"})
"""Rules that go by what was returned: only an engine that says what a test tells it can show them (`test_echoes`)."""


def fronted_cases() -> list[Case]:
    """Those whose prompts a text model can be sent by one tenant.

    An upstream's cache is common to all tenants: what keeps them apart there is not the gateway's.
    """
    every = [case for case in load_cases() if len(set(case.tenants)) == 1]
    return [case for case in every if "image_url" not in json.dumps(case.bodies) and case.rule not in NEEDS_ANSWERS]


@dataclass(frozen=True, slots=True)
class Told:
    """What one answer's header says."""

    rules: Sequence[str]
    num_prompt_tokens: int
    num_cached_tokens: int
    predicted: int | None
    """None: nothing was."""
    reason: str | None


async def ask(client: httpx.AsyncClient, body: dict[str, Any]) -> Told:
    """Send one body, for an answer in one piece: the head of a stream leaves before its usage is known.

    Raises: httpx.HTTPStatusError: the engine refuses it.
    """
    body = {"model": "m", **body, "stream": False}
    body.pop("stream_options", None)
    answer = await client.post(ROUTE, content=json.dumps(body))
    answer.raise_for_status()
    facts = dict(entry.split("=") for entry in answer.headers["x-prefixgate-cache"].split("; "))
    predicted = facts.get("predicted")
    return Told(
        facts["rules"].split(","),
        int(facts["prompt"]),
        int(facts["cached"]),
        None if predicted is None else int(predicted),
        facts.get("reason"),
    )


def assert_settled(case: Case, told: Sequence[Told], *, rules: frozenset[str], block_size: int) -> None:
    """The rule that decides a case fired, and all of the prompt is reused where all of it is common.

    Args:
        case: that was sent.
        told: of its bodies, in order.
        rules: names of all rules there are.
        block_size: tokens that the engine reuses as one; the last one of a prompt is always computed.
    """
    fired = {name for one in told for name in one.rules}
    if case.rule in rules and not case.is_negative:
        assert case.rule in fired, case.name
    for other in told[1:]:
        if case.shared == ALL and not case.is_negative:
            assert other.num_prompt_tokens == told[0].num_prompt_tokens, case.name
            assert other.num_cached_tokens >= (other.num_prompt_tokens - 1) // block_size * block_size, case.name
