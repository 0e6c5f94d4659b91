from __future__ import annotations

import logging
from pathlib import Path

import pytest

from gateway.template import ChatTemplateError
from gateway.template_check import TemplateVerdict, check_template, log_verdict
from tests.gateway.conftest import open_client
from tests.gateway.support.fake_backend import FakeBackend
from tests.gateway.support.templates import CHATML, LATE_SYSTEM, PLAIN, SPELLED_TOOLS, THINKING, TRIMMING
from tests.gateway.support.tiny_model import TEMPLATE, write_model


def check(source: str) -> TemplateVerdict:
    return check_template(source, {"bos_token": "<s>", "eos_token": "</s>"})


STRICT = "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}" + PLAIN
NEEDS_TOOLS = "{% for t in tools %}{% endfor %}" + PLAIN.replace("{% for m", "{{ tools[0].function.name }}{% for m")
INSERTING = CHATML.replace("{{ m.content }}", "{% if m.role == 'assistant' %}<think></think>{% endif %}{{ m.content }}")


@pytest.mark.parametrize("source", [CHATML, TRIMMING, SPELLED_TOOLS, PLAIN, STRICT, NEEDS_TOOLS])
def test_template_that_only_appends_is_stable(source: str) -> None:
    verdict = check(source)
    assert verdict.is_stable
    assert (verdict.prompt_kept, verdict.tool_prompt_kept, verdict.answer_kept) == (1, 1, 1)
    assert (verdict.clock, verdict.is_random) == ("none", False)
    assert list(verdict.sentences()) == []


def test_template_that_changes_earlier_turns_is_not() -> None:
    verdict = check(LATE_SYSTEM)
    assert not verdict.is_stable
    assert 0 < verdict.prompt_kept < 0.5
    assert verdict.tool_place == "last_turn"
    assert len(list(verdict.sentences())) >= 3


def test_template_that_ends_prompts_with_what_it_drops_later_is_not() -> None:
    verdict = check(THINKING)
    assert not verdict.is_stable
    assert 0.5 < verdict.prompt_kept < 1
    assert (verdict.answer_kept, verdict.reasoning) == (0, "dropped")
    assert check(CHATML).reasoning == "kept"


def test_template_that_puts_something_before_answers_keeps_prompts_and_not_answers() -> None:
    verdict = check(INSERTING)
    assert verdict.is_stable
    assert (verdict.prompt_kept, verdict.answer_kept) == (1, 0)
    assert any("Answers" in sentence for sentence in verdict.sentences())


@pytest.mark.parametrize(
    ("head", "clock", "where"),
    [
        ("{{ strftime_now('%d %b %Y') }}", "date", ("of all kinds",)),
        ("{{ strftime_now('%A') }}", "date", ("of all kinds",)),
        ("{{ strftime_now('%H:%M') }}", "time", ("of all kinds",)),
        ("{{ strftime_now('%S') }}", "time", ("of all kinds",)),
        ("{% if tools %}{{ strftime_now('%Y') }}{% endif %}", "date", ("with system text and tools", "with tools and no system text")),
        ("{% if messages[0].role == 'user' %}{{ strftime_now('%p') }}{% endif %}", "time", ("without system text", "with tools and no system text")),
        ("{% if strftime_now('%Y') | int > 2020 %}new{% endif %}", "date", ("of all kinds",)),
        ("{% if 2020 < strftime_now('%Y') | int < 2034 %}now{% endif %}", "date", ("of all kinds",)),
        ("{% set now = strftime_now('%s') %}", "none", ()),
    ],
)  # fmt: skip
def test_clock_is_found_wherever_it_shows(head: str, clock: str, where: tuple[str, ...]) -> None:
    verdict = check(head + CHATML)
    assert (verdict.clock, verdict.clock_in, verdict.is_stable) == (clock, where, clock == "none")


@pytest.mark.parametrize(("head", "is_random"), [("{{ range(9) | random }}", True), ("{{ [1] | random }}", False)])
def test_chance_is_found(head: str, is_random: bool) -> None:
    assert check(head + CHATML).is_random is is_random
    assert check(head + CHATML).is_stable is not is_random


@pytest.mark.parametrize(
    ("tools", "place", "order", "keys"),
    [
        ("", "ignored", False, False),
        ("{{ tools | tojson }}", "head", True, True),
        ("{{ tools | tojson(sort_keys=true) }}", "head", True, False),
        ("{% for t in tools | sort(attribute='function.name') %}{{ t.function.name }}{% endfor %}", "head", False, False),
        ("{% for t in tools %}{% for p in t.function.parameters.properties %}{{ t.function.name, p }}{% endfor %}{% endfor %}", "head", True, False),
    ],
)  # fmt: skip
def test_place_and_order_of_tools_are_seen(tools: str, place: str, order: bool, keys: bool) -> None:
    verdict = check(tools + PLAIN)
    assert (verdict.tool_place, verdict.tool_order_shows, verdict.key_order_shows) == (place, order, keys)


def test_template_that_refuses_everything_has_no_findings() -> None:
    verdict = check("{{ raise_exception('no') }}")
    assert verdict == TemplateVerdict(None, None, None, None, (), None, None, None, None, None)
    assert "nothing is known" in next(verdict.sentences())
    with pytest.raises(ChatTemplateError):
        check("{% if %}")


async def test_config_shows_the_verdict(backend: FakeBackend, tmp_path: Path) -> None:
    files = write_model(tmp_path, template="{{ strftime_now('%Y') }}" + TEMPLATE)
    async with open_client(backend, files, admin_key="k" * 32) as client:
        shown = await client.get("/admin/v1/config", headers={"authorization": "Bearer " + "k" * 32})
    found = shown.json()["chat_template_check"]
    assert (found["is_stable"], found["clock"], found["clock_in"]) == (False, "date", ["of all kinds"])
    assert found["sentences"][0].startswith("It prints the date")


def test_log_warns_of_what_costs_hits(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    log_verdict(check(CHATML))
    assert caplog.records == []
    log_verdict(check("{{ strftime_now('%Y') }}" + CHATML))
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    caplog.clear()
    log_verdict(check(INSERTING))
    assert [record.levelname for record in caplog.records] == ["INFO"]
