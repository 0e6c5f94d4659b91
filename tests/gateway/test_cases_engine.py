"""The cases once more, through an engine: what pairs share is reported as cached, and what must stay apart does not merge."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.conversation import Conversation
from tests.gateway.support.cases import ALL, Case, load_cases
from tests.gateway.test_cases import NOT_SAFE, NUM_ASKING_TOKENS, common, outcomes, rules_with, tokens
from tests.support.chain_runner import ChainRunner
from tests.support.engine_factory import Transcript, add_request, make_engine

__all__ = ["tokens"]

CASES = [case for case in load_cases() if "image_url" not in json.dumps(case.bodies)]
LEAST_PARTIAL = 8


def cached_tokens(prompts: list[tuple[str, list[int]]]) -> list[int]:
    """Send prompts of tenants one after the other; returns how much of each came from the cache."""
    engine, runner = make_engine(ChainRunner(num_blocks=512), max_shared_ratio=1.0)
    cached = []
    for number, (tenant, token_ids) in enumerate(prompts):
        name = str(number)
        add_request(engine, name, [token % runner.vocab_size for token in token_ids], max_tokens=1, scope=tenant)
        cached.append(Transcript().run(engine).admitted[name].num_cached_tokens)
    return cached


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_engine_reports_what_a_pair_shares(case: Case, tokens: Any) -> None:
    normalized = outcomes(case, rules_with(*([case.on] if case.on else NOT_SAFE if case.is_negative else [])))
    prompts = [tokens(conversation) for conversation in normalized]
    scopes = [f"tenant:{tenant}" for tenant in case.tenants]
    for scope, prompt, conversation in list(zip(scopes, prompts, normalized, strict=False))[1:]:
        _, cached = cached_tokens([(scopes[0], prompts[0]), (scope, prompt)])
        if scope != scopes[0]:
            assert cached == 0
            continue
        equal = common(prompts[0], prompt)
        assert cached <= equal
        if not case.is_negative and shared_tokens(case, tokens, normalized[0], conversation):
            # All of it but a rest that is too short for a copy; a prompt's last token is always computed.
            least = shared_tokens(case, tokens, normalized[0], conversation)
            assert cached > min(least, len(prompt) - 1) - LEAST_PARTIAL


def shared_tokens(case: Case, tokens: Any, first: Conversation, other: Conversation) -> int:
    """Tokens of the messages that a pair must share; 0: none are promised."""
    if case.shared == ALL:
        return len(tokens(first))
    if not case.shared or first.tools != other.tools:
        return 0
    alone = tokens(Conversation(first.messages[: case.shared], first.tools))
    asks = NUM_ASKING_TOKENS if case.shared >= len(first.messages) else 0
    return common(tokens(first), alone) - asks
