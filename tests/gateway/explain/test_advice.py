"""The rule that would have helped: named where it would make both sides equal, and only there."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gateway.explain.advice import Case, helpful_rule
from gateway.explain.difference import difference_of
from gateway.explain.places import place_of
from gateway.normalize.rule import Mode
from tests.gateway.explain.labelled import BASE, BLOCK, SYSTEM, TOOLS, TURNS, Bench, CharDecoder, Chat, turn

RULES = (
    *("strip_client_header", "drop_leading_bom", "trim_end_of_system", "crlf_to_lf_system", "relocate_volatile"),
    *("canonical_tool_order", "reasoning_restore", "canonical_call_ids", "echo_repair"),
)
OFF = dict.fromkeys(RULES, Mode.OFF)


def advice(before: Chat, now: Chat, modes=OFF) -> str | None:
    bench = Bench()
    bench.send(before)
    explanation = bench.send(now)
    place = place_of(now.spans, explanation.num_common_tokens, now.roles)
    assert place is not None
    assert explanation.diverging_token is not None
    same_tools = before.tools != now.tools and sorted(before.tools) == sorted(now.tools)
    case = Case(place.kind, difference_of(explanation, place, CharDecoder()), has_same_tools=same_tools)
    return helpful_rule(case, modes)


def system(text: str) -> Chat:
    return replace(BASE, system=text)


CALL = ("assistant", '{"id": "call_8fk2jd93", "name": "tides"}')
OTHER_CALL = ("assistant", '{"id": "call_x01nbv4e", "name": "tides"}')
HELPED = {
    "clock": (system(f"{SYSTEM} It is 10:41:07 now."), system(f"{SYSTEM} It is 10:42:30 now."), "relocate_volatile"),
    "date and time": (
        system(f"{SYSTEM} Now: 2030-01-31T10:41:07Z. Go."),
        system(f"{SYSTEM} Now: 2030-02-01T09:00:00Z. Go."),
        "relocate_volatile",
    ),
    "uuid": (
        system(f"{SYSTEM} Session 3f2504e0-4f89-41d3-9a0c-0305e82c3301 is open."),
        system(f"{SYSTEM} Session 9b1deb4d-3b7d-4bad-9bdd-2b0d7b3dcb6d is open."),
        "relocate_volatile",
    ),
    "counter": (
        system(f"{SYSTEM} You have 812 tokens left for it."),
        system(f"{SYSTEM} You have 64 tokens left for it."),
        "relocate_volatile",
    ),
    "clock in a tool": (
        replace(BASE, tools=(TOOLS[0], TOOLS[1].replace("a day", "a day, at 10:41:07 the last time"))),
        replace(BASE, tools=(TOOLS[0], TOOLS[1].replace("a day", "a day, at 11:30:00 the last time"))),
        "relocate_volatile",
    ),
    "accounting line": (
        system(f"x-anthropic-billing-header: cch=a1b2c;\n{SYSTEM}"),
        system(f"x-anthropic-billing-header: cch=99f01;\n{SYSTEM}"),
        "strip_client_header",
    ),
    "byte order mark": (system(f"\ufeff{SYSTEM}"), system(SYSTEM), "drop_leading_bom"),
    "blank at the end": (system(f"{SYSTEM} \n"), system(SYSTEM), "trim_end_of_system"),
    "no blank at the end": (system(SYSTEM), system(f"{SYSTEM} \n"), "trim_end_of_system"),
    "line ends": (system(f"{SYSTEM}\r\nBe kind."), system(f"{SYSTEM}\nBe kind."), "crlf_to_lf_system"),
    "tools in another order": (BASE, replace(BASE, tools=TOOLS[::-1]), "canonical_tool_order"),
    "reasoning": (turn(3, f"<think>Look at the list.</think>{TURNS[3][1]}"), BASE, "reasoning_restore"),
    "long reasoning": (turn(3, f"<think>{'Look at it. ' * 9}</think>{TURNS[3][1]}"), BASE, "reasoning_restore"),
    "call id": (
        replace(BASE, turns=(TURNS[0], CALL, *TURNS[2:])),
        replace(BASE, turns=(TURNS[0], OTHER_CALL, *TURNS[2:])),
        "canonical_call_ids",
    ),
    "arguments": (BASE, turn(1, 'berths({"quay":"north","ship":"MARIE"})'), "echo_repair"),
    "trimmed answer": (turn(3, TURNS[3][1] + " \n"), BASE, "echo_repair"),
}
NOT_HELPED = {
    "other words": (system(f"{SYSTEM} Be brief, and kind."), system(f"{SYSTEM} Be long, and kind.")),
    "cut-off date of a policy and other words": (
        system(f"{SYSTEM} Until 2030-01-31 they pay half."),
        system(f"{SYSTEM} Until 2030-02-28 they pay all."),
    ),
    "blank within the system text": (system(f"{SYSTEM}  Be kind."), system(f"{SYSTEM} Be kind.")),
    "clock of the user": (turn(0, "It is 10:41:07 now, so what?"), turn(0, "It is 10:42:30 now, so what?")),
    "line end of the user": (turn(0, "One\r\ntwo, please."), turn(0, "One\ntwo, please.")),
    "layout of a tool result": (turn(2, '["N2", "N4", "N7"]'), turn(2, '["N2","N4","N7"]')),
    "edited answer": (BASE, turn(3, TURNS[3][1].replace("N7", "N8"))),
    "other arguments": (BASE, turn(1, 'berths({"quay":"south","ship":"MARIE"})')),
    "another number in the arguments": (turn(1, '{"n": 5, "ship": "MARIE"}'), turn(1, '{"n": 5.0, "ship": "MARIE"}')),
    "other reasoning": (turn(3, "<think>A</think>N2."), turn(3, "<think>B</think>N2.")),
    "one tool less": (BASE, replace(BASE, tools=TOOLS[1:])),
    "template": (BASE, replace(BASE, date="2 May 2030, 10:41:07.")),
}


@pytest.mark.parametrize("name", HELPED)
def test_rule_is_named_where_it_would_make_both_sides_equal(name: str) -> None:
    before, now, rule = HELPED[name]
    assert advice(before, now) == rule
    assert advice(before, now, OFF | {rule: Mode.AUDIT}) == rule


@pytest.mark.parametrize("name", HELPED)
def test_rule_that_is_on_or_does_not_exist_is_not_named(name: str) -> None:
    before, now, rule = HELPED[name]
    assert advice(before, now, OFF | {rule: Mode.ON}) is None
    assert advice(before, now, {other: mode for other, mode in OFF.items() if other != rule}) is None


def test_no_rule_is_named_where_too_little_is_cached_behind_the_difference() -> None:
    before = system(f"{SYSTEM}\r\nBe kind.")
    start = before.text.index("\r")
    padded = replace(before, date=before.date + " " * ((BLOCK - 3 - start) % BLOCK))
    now = replace(padded, system=f"{SYSTEM}\nBe kind.")
    end = padded.text.index("\r") + 3
    assert end % BLOCK == 0
    assert advice(padded.cut(end), now) is None
    assert advice(padded.cut(end + BLOCK), now) == "crlf_to_lf_system"


@pytest.mark.parametrize("name", NOT_HELPED)
def test_no_rule_is_named_where_the_meaning_differs(name: str) -> None:
    assert advice(*NOT_HELPED[name]) is None
