"""Declared text moves behind the history, and what was stated once is stated again where it stood."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.chat_request import conversation_of
from gateway.conversation import body_of
from gateway.normalize.memory import TurnMemory
from gateway.normalize.recollection import Recollection
from gateway.normalize.registry import Choice, RuleSet
from gateway.normalize.rule import Context, Mode
from gateway.normalize.rules import built_in_rules
from gateway.normalize.volatile_kinds import volatile_candidates
from tests.gateway.support.chats import Body, assistant, calling, chat, normalize, result, tool, user

CLOCK = r"Time: \d{4}-\d{2}-\d{2} \d{2}:\d{2}:\d{2}"


def on(**params: Any) -> RuleSet:
    return built_in_rules().rule_set({"relocate_volatile": Choice(Mode.ON, params)})


def messages(body: Body, rules: RuleSet, memory: TurnMemory | None = None) -> list[Body]:
    found: list[Body] = body_of(normalize(body, rules, memory).conversation)["messages"]
    return found


def texts(message: Body) -> list[str]:
    content = message["content"]
    return [content] if isinstance(content, str) else [part["text"] for part in content]


def shared(first: list[Body], second: list[Body]) -> int:
    """Number of leading messages that are byte-identical."""
    same = [json.dumps(a) == json.dumps(b) for a, b in zip(first, second, strict=False)]
    return next((index for index, equal in enumerate(same) if not equal), len(same))


def at(
    second: int, *turns: Body, text: str = "You sell.\nTime: 2031-05-06 07:08:{:02}\nBe kind.", **fields: Any
) -> Body:
    return chat(*(turns or [user("Open?")]), system=text.format(second), **fields)


def test_text_moves_behind_the_users_own_which_stays_byte_for_byte() -> None:
    head, turn = messages(at(9, user("Open? \r\n")), on(patterns=[CLOCK]))
    assert head["content"] == "You sell.\n[see value-1]\nBe kind."
    own, stated = texts(turn)
    assert own == "Open? \r\n"
    assert stated == "Values that the instructions refer to:\n[value-1] Time: 2031-05-06 07:08:09"


@pytest.mark.parametrize(
    ("params", "text", "expected"),
    [
        ({"tags": ["meta"]}, "<meta>\nid: {}\n</meta>\nSell.", "[see meta-1]\nSell."),
        ({"tags": ["meta"]}, 'Sell.\n<meta a="1">{}</meta>', "Sell.\n[see meta-1]"),
        ({"kinds": ["clock"]}, "Now 2031-05-06T07:08:{:02}Z, be kind.", "Now [see clock-1], be kind."),
        ({"kinds": ["counter"]}, "Left: {} tokens left.", "Left: [see counter-1]."),
        ({"kinds": ["uuid"]}, "Run 123e4567-e89b-12d3-a456-4266141740{:02}.", "Run [see uuid-1]."),
        ({"kinds": ["path"]}, "In /home/u{}/shop you work.", "In [see path-1] you work."),
        ({"patterns": [r"in \S+"], "kinds": ["counter"]}, "in {} and 5 turns", "[see value-1] and [see counter-1]"),
        ({"tags": ["meta"], "kinds": ["clock"]}, "<meta>07:08:{:02}</meta>07:08:09", "[see meta-1][see clock-1]"),
    ],
)
def test_every_way_to_declare_leaves_a_stable_head(params: Body, text: str, expected: str) -> None:
    first, second = (messages(at(second, text=text), on(**params)) for second in (10, 11))
    assert first[0]["content"] == second[0]["content"] == expected
    assert texts(first[1])[1] != texts(second[1])[1]
    assert "10" in texts(first[1])[1]


def test_descriptions_of_tools_move_too_and_nothing_else_of_tools() -> None:
    def with_path(path: str) -> Body:
        parameters = {
            "type": "object",
            "properties": {"at": {"description": f"not s-{path}.json", "default": f"s-{path}.json"}},
        }
        return chat(tools=[tool(description=f"Never write s-{path}.json.", parameters=parameters)])

    first, second = (
        body_of(normalize(with_path(path), on(patterns=[r"s-[0-9a-f]{4}\.json"])).conversation)
        for path in ("7c1f", "e90b")
    )
    function = first["tools"][0]["function"]
    assert function["description"] == "Never write [see value-1]."
    assert function["parameters"]["properties"]["at"] == {"description": "not [see value-2]", "default": "s-7c1f.json"}
    assert first["tools"] != second["tools"]
    assert texts(first["messages"][-1])[1].endswith("[value-1] s-7c1f.json\n[value-2] s-7c1f.json")


@pytest.mark.parametrize(
    "body",
    [
        chat(user("Time: 2031-05-06 07:08:09")),
        chat(user("Hi"), {"role": "system", "content": "Time: 2031-05-06 07:08:09"}, user("?")),
        chat(system="```\nTime: 2031-05-06 07:08:09\n```"),
        chat({"role": "system", "content": "Time: 2031-05-06 07:08:09"}, system=None),
        chat(user("Hi"), assistant("Time: 2031-05-06 07:08:09"), user("?")),
    ],
)
def test_what_is_not_in_the_head_or_has_nowhere_to_go_stays(body: Body) -> None:
    assert "relocate_volatile" not in normalize(body, on(patterns=[CLOCK])).fired


def test_a_head_with_too_many_places_stays_as_it_is() -> None:
    assert "relocate_volatile" in normalize(chat(system="7 " * 128), on(patterns=[r"\d"])).fired
    assert "relocate_volatile" not in normalize(chat(system="7 " * 129), on(patterns=[r"\d"])).fired


def test_a_statement_stands_before_a_prefill_and_not_in_it() -> None:
    *_, turn, prefill = messages(at(9, user("Open?"), assistant("We ")), on(patterns=[CLOCK]))
    assert len(texts(turn)) == 2
    assert prefill == {"role": "assistant", "content": "We "}


# Conversations


def talk(length: int, *, second: int = 0) -> list[Body]:
    turns = [turn for index in range(length) for turn in (user(f"q{index}"), assistant(f"a{index}"))]
    return [*turns, user(f"q{length}")]


def test_every_turn_of_a_conversation_keeps_the_prompt_of_the_one_before() -> None:
    rules, memory, before = on(patterns=[CLOCK]), TurnMemory(), list[Body]()
    for length in range(6):
        prompt = messages(at(length, *talk(length)), rules, memory)
        assert shared(before, prompt) == len(before)
        assert texts(prompt[-1])[1].endswith(f"07:08:{length:02}")
        before = prompt


def test_without_a_memory_only_the_last_exchange_is_lost() -> None:
    rules = on(patterns=[CLOCK])
    first, second = (messages(at(length, *talk(length)), rules) for length in (3, 4))
    assert shared(first, second) == len(first) - 1


def test_while_tools_are_called_a_clock_keeps_the_time_of_the_users_turn() -> None:
    rules, memory = on(patterns=[CLOCK]), TurnMemory()
    first = messages(at(1), rules, memory)
    second = messages(at(2, user("Open?"), calling("x"), result("x")), rules, memory)
    assert shared(first, second) == len(first)
    third = messages(
        at(3, user("Open?"), calling("x"), result("x"), assistant("Yes."), user("And now?")), rules, memory
    )
    assert shared(second, third) == len(second)
    assert texts(third[-1])[1].endswith("07:08:03")


def test_days_and_minutes_are_clocks_too() -> None:
    rules, memory = on(patterns=["Now: .*"]), TurnMemory()
    first, second = (
        chat(*turns, system=f"Now: {now}\nSell.")
        for turns, now in (
            ([user("Open?")], "Monday, May 5, 2031, 9:59 PM"),
            ([user("Open?"), calling("x"), result("x")], "Tuesday, May 6, 2031, 0:01 AM"),
        )
    )
    before = messages(first, rules, memory)
    assert shared(before, messages(second, rules, memory)) == len(before)


def test_what_is_no_clock_is_stated_anew_even_while_tools_are_called() -> None:
    rules, memory = on(tags=["left"]), TurnMemory()
    text = "Sell.\n<left>{} tokens</left>"
    messages(at(9, text=text), rules, memory)
    prompt = messages(at(8, user("Open?"), calling("x"), result("x"), text=text), rules, memory)
    assert "8 tokens" in texts(prompt[1])[1]


def test_a_question_that_is_asked_again_gets_the_new_time() -> None:
    rules, memory = on(patterns=[CLOCK]), TurnMemory()
    assert [texts(messages(at(second), rules, memory)[1])[1][-2:] for second in (1, 2)] == ["01", "02"]


def test_counters_are_found_again_where_no_other_conversation_began_alike() -> None:
    rules, text = on(tags=["left"]), "Sell.\n<left>{} tokens</left>"
    memory = TurnMemory()
    first = messages(at(90, *talk(0), text=text), rules, memory)
    messages(at(90, *talk(0), text=text), rules, memory)  # tried again, it is no other conversation
    assert shared(first, messages(at(80, *talk(1), text=text), rules, memory)) == len(first)
    memory = TurnMemory()
    first = messages(at(90, *talk(0), text=text), rules, memory)
    messages(at(70, *talk(0), text=text), rules, memory)
    again = messages(at(80, *talk(1), text=text), rules, memory)
    assert shared(first, again) == len(first) - 1
    assert again[1]["content"] == "q0"


def test_a_text_of_one_end_user_never_comes_into_the_prompt_of_another() -> None:
    rules, memory = on(tags=["notes"]), TurnMemory()
    text = "Sell.\n<notes>{}</notes>"
    messages(chat(*talk(0), system=text.format("Ann is ill")), rules, memory)
    for length in (0, 1, 2):
        prompt = messages(chat(*talk(length), system=text.format("Bob is well")), rules, memory)
        assert "Ann" not in json.dumps(prompt)
        assert "Bob is well" in texts(prompt[-1])[1]


def test_end_users_that_the_body_names_share_no_statement() -> None:
    rules, memory = on(patterns=[CLOCK]), TurnMemory()
    messages(at(1, *talk(0), user="ann"), rules, memory)
    assert messages(at(2, *talk(1), user="bob"), rules, memory)[1]["content"] == "q0"


def test_another_tenant_gets_nothing() -> None:
    rules, memory = on(patterns=[CLOCK]), TurnMemory()
    rules.normalize(conversation_of(at(1, *talk(0))), Context("a", Recollection(memory, "a")))
    after = rules.normalize(conversation_of(at(2, *talk(1))), Context("b", Recollection(memory, "b"))).conversation
    assert after.messages[1].content == "q0"


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 59)), max_size=8))
def test_values_of_the_newest_turn_are_always_stated_and_nothing_is_lost(steps: list[tuple[int, int]]) -> None:
    rules, memory = on(patterns=[CLOCK]), TurnMemory()
    for length, second in steps:
        prompt = messages(at(second, *talk(length)), rules, memory)
        assert texts(prompt[-1]) == [f"q{length}", texts(prompt[-1])[1]]
        assert texts(prompt[-1])[1].endswith(f"Time: 2031-05-06 07:08:{second:02}")
        assert [texts(turn)[0] for turn in prompt[1:]] == [turn["content"] for turn in talk(length)]


def test_open_slots_of_a_registered_prompt_are_stated_under_their_names() -> None:
    context = Context("t", open_slots={"shop": "North"})
    rules = on()
    once = rules.normalize(conversation_of(chat(system="You sell at {{shop}}.")), context).conversation
    head, turn = body_of(once)["messages"]
    assert head["content"] == "You sell at {{shop}}."
    assert texts(turn)[1].endswith("[{{shop}}] North")
    assert rules.normalize(once, context).fired == ()


# Candidates


def test_in_audit_mode_the_rule_finds_clocks_and_ids_on_its_own() -> None:
    body = chat(system="Now: 2031-05-06 07:08:09. Until 2031-12-31.")
    audit = built_in_rules().rule_set({"relocate_volatile": Choice(Mode.AUDIT)}).normalize(conversation_of(body))
    assert audit.would_fire == ("relocate_volatile",)
    assert audit.audited.messages[0].content == "Now: [see clock-1]. Until 2031-12-31."
    assert audit.conversation.messages[0].content == body["messages"][0]["content"]
    assert "relocate_volatile" not in normalize(body, on()).fired


def test_candidates_are_found_with_owner_span_and_kind() -> None:
    body = chat(
        user("at 07:08:09"),
        system=[
            {"type": "text", "text": "It is 2031-05-06 07:08:09. Rules of 2031-01-01 hold."},
            {"type": "text", "text": "1200 tokens left"},
        ],
        tools=[
            tool(description="Writes s-7c1f0a52.json", parameters={"properties": {"at": {"description": "5 turns"}}})
        ],
    )
    found = volatile_candidates(conversation_of(body))
    assert [(one.owner, one.field, one.start, one.kind, one.text) for one in found] == [
        ("messages[0].content[0]", "content", 6, "clock", "2031-05-06 07:08:09"),
        ("messages[0].content[1]", "content", 0, "counter", "1200 tokens left"),
        ("tools[0]", "function.description", 9, "hex_id", "7c1f0a52"),
        ("tools[0]", "function.parameters", 0, "counter", "5 turns"),
    ]
    assert volatile_candidates(conversation_of(chat(system="Be kind until 2031-01-01, decade, 12345678."))) == []
