"""The cases of cache misses in front of an engine with a cache of its own: the right rule fires, and what must meet meets."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gateway.model_files import ModelFiles
from gateway.normalize.registry import RuleRegistry
from gateway.normalize.rule import Mode, Rule
from gateway.upstream.app import upstream_rules
from tests.gateway.support.cases import REGISTERED
from tests.gateway.support.tiny_model import write_model
from tests.gateway.test_cases import TEMPLATE
from tests.gateway.upstream.caching import BLOCK_SIZE, CachingUpstream
from tests.gateway.upstream.fronted import ask, assert_settled, fronted_cases
from tests.gateway.upstream.mock import proxy_of

RULES = frozenset(rule.name for rule in upstream_rules().rules)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> ModelFiles:
    return write_model(tmp_path_factory.mktemp("fronted"), template=TEMPLATE)


def switched_on(rule: Rule) -> Rule:
    params = REGISTERED.get(rule.name, {})
    return replace(rule, default=Mode.ON, build=lambda _: rule.build(params))


@pytest.mark.parametrize("on", sorted({case.on or "" for case in fronted_cases()}))
async def test_cases_in_front_of_an_engine(on: str, files: ModelFiles) -> None:
    """All that need the same rule go through one gateway, for starting one takes longer than a case."""
    rules = RuleRegistry([switched_on(rule) if rule.name == on else rule for rule in upstream_rules().rules])
    upstream = CachingUpstream(files=files)
    async with proxy_of(upstream, rules=rules, tokenizer=files.folder) as proxy:
        for case in (case for case in fronted_cases() if (case.on or "") == on):
            told = [await ask(proxy.client, body) for body in case.bodies]
            assert_settled(case, told, rules=RULES, block_size=BLOCK_SIZE)
            for one in told:
                assert one.predicted is not None
                # By whole blocks of 16; what is there in part is not predicted.
                assert one.predicted <= one.num_cached_tokens < one.predicted + 16 + BLOCK_SIZE, case.name
