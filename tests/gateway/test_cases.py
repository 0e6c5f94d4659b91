"""Every reported cause of a miss, as a pair of requests: bytes and tokens that must be shared, values that must not."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from gateway.chat_request import conversation_of
from gateway.conversation import Conversation, body_of
from gateway.normalize.history import remember_history
from gateway.normalize.memory import TurnMemory
from gateway.normalize.recollection import Recollection
from gateway.normalize.registry import Choice, RuleSet
from gateway.normalize.rule import Context, Mode, RuleClass
from gateway.normalize.rules import built_in_rules
from gateway.rendering import PromptRenderer
from gateway.template import ChatTemplate
from gateway.tokenizer import Tokenizer
from tests.gateway.support.cases import ALL, REGISTERED, Case, load_cases
from tests.gateway.support.tiny_model import write_model

TEMPLATE = """\
{% if tools %}<|turn|>tools
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}<|stop|>
{% endif %}{% for m in messages %}<|turn|>{{ m.role }}
{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}{% if m.content is string %}{{ m.content }}\
{% else %}{% for part in m.content %}{{ part.text if part.type == 'text' else '<image>' }}
{% endfor %}{% endif %}{% for c in m.tool_calls %}<call id="{{ c.id }}">{{ c.function.name }}{{ c.function.arguments | tojson }}\
</call>{% endfor %}{{ m.tool_call_id }}<|stop|>
{% endfor %}{% if add_generation_prompt %}<|turn|>assistant
{% endif %}"""
NUM_ASKING_TOKENS = 5
"""That ask for an answer at the end of a rendering; no part of what is shared."""
CASES = load_cases()
NOT_SAFE = [rule.name for rule in built_in_rules().rules if rule.rule_class is not RuleClass.SAFE]


def rules_with(*names: str) -> RuleSet:
    return built_in_rules().rule_set({name: Choice(Mode.ON, REGISTERED.get(name, {})) for name in names})


def outcomes(case: Case, rules: RuleSet) -> list[Conversation]:
    """Normalize all bodies as one gateway would that saw the first one answered; once more must change nothing."""
    memory, first = TurnMemory(), conversation_of(case.bodies[0])
    normalized = []
    for tenant, body in zip(case.tenants, case.bodies, strict=False):
        if tenant == case.tenants[0]:
            remember_history([first], rules, memory=memory, scope=tenant)
        result = rules.normalize(conversation_of(body), Context(tenant, Recollection(memory, tenant)))
        again = rules.normalize(result.conversation, Context(tenant, Recollection(memory, tenant)))
        assert printed(again.conversation) == printed(result.conversation)
        normalized.append(result.conversation)
    return normalized


def printed(conversation: Conversation) -> str:
    return json.dumps(body_of(conversation))


def assert_shared(first: Conversation, other: Conversation, num_messages: int, tools_shared: bool | None) -> None:
    mine, others = ([json.dumps(message) for message in body_of(one)["messages"]] for one in (first, other))
    assert mine[:num_messages] == others[:num_messages]
    tools = [json.dumps(body_of(one).get("tools")) for one in (first, other)]
    if num_messages == ALL or tools_shared is not None:
        assert (tools[0] == tools[1]) == (tools_shared is not False)


def value_at(body: Any, path: Sequence[str | int]) -> str:
    for step in path:
        body = body[step] if isinstance(body, list) else body.get(step)
    return json.dumps(body)


def assert_apart(case: Case, normalized: Sequence[Conversation]) -> None:
    values = [value_at(body_of(conversation), case.must_differ) for conversation in normalized]
    assert all(value != values[0] for value in values[1:])


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Tokens of a conversation, or of its first messages alone."""
    tokenizer = Tokenizer(write_model(tmp_path_factory.mktemp("cases")).tokenizer_file)
    template = ChatTemplate(TEMPLATE, special_tokens={})
    renderer = PromptRenderer(template, tokenizer)

    def of(conversation: Conversation) -> list[int]:
        return list(renderer.token_ids(conversation).tolist())

    return of


def common(first: Sequence[int], other: Sequence[int]) -> int:
    return next(
        (index for index, (a, b) in enumerate(zip(first, other, strict=False)) if a != b), min(len(first), len(other))
    )


def assert_tokens_shared(tokens: Any, first: Conversation, other: Conversation, num_messages: int) -> None:
    if num_messages == ALL:
        assert tokens(first) == tokens(other)
    elif num_messages and first.tools == other.tools:
        shared = Conversation(first.messages[:num_messages], first.tools)
        least = common(tokens(first), tokens(shared))
        asks = NUM_ASKING_TOKENS if num_messages >= len(first.messages) else 0
        assert common(tokens(first), tokens(other)) >= least - asks


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_case(case: Case, tokens: Any) -> None:
    has_images = "image_url" in json.dumps(case.bodies)
    runs: list[tuple[RuleSet, int, bool | None]] = []
    if case.on is not None:
        runs.append((rules_with(), case.shared_by_default, None))
    runs.append((rules_with(*filter(None, [case.on])), case.shared, case.tools_shared))
    for rules, shared, tools_shared in runs:
        normalized = outcomes(case, rules)
        for other in normalized[1:]:
            assert_shared(normalized[0], other, shared, tools_shared)
            if not has_images and not case.is_negative:
                assert_tokens_shared(tokens, normalized[0], other, shared)
        if case.must_differ:
            assert_apart(case, normalized)


def is_to_be_repaired(case: Case) -> bool:
    """Whether its bodies differ, and are to meet."""
    seen = {json.dumps([body["messages"], body.get("tools"), body.get("cache_salt")]) for body in case.bodies}
    return len(seen) > 1 and (bool(case.on) or (case.shared == ALL and not case.is_negative))


@pytest.mark.parametrize("case", list(filter(is_to_be_repaired, CASES)), ids=lambda case: case.name)
def test_a_normalizer_that_does_nothing_fails_where_something_is_to_be_repaired(case: Case) -> None:
    off = built_in_rules().rule_set({rule.name: Choice(Mode.OFF) for rule in built_in_rules().rules})
    normalized = outcomes(case, off)
    assert len({printed(conversation) for conversation in normalized}) > 1


@pytest.mark.parametrize(
    "case", [case for case in CASES if case.is_negative and case.must_differ], ids=lambda case: case.name
)
def test_negative_case_stays_apart_whatever_is_on(case: Case, tokens: Any) -> None:
    normalized = outcomes(case, rules_with(*NOT_SAFE))
    assert_apart(case, normalized)
    if "messages" in case.must_differ and "image_url" not in json.dumps(case.bodies):
        assert all(tokens(other) != tokens(normalized[0]) for other in normalized[1:])


def test_every_rule_decides_a_case() -> None:
    names = {rule.name for rule in built_in_rules().rules if rule.rule_class is not RuleClass.CONTEXT}
    assert names - {case.rule for case in CASES} == {"trim_end_of_system"}
