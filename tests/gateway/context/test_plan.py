"""Plans: a function of the history alone, cut at watermarks, whole turns, and between cuts nothing that was sent changes."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.context.history import MESSAGE_TOKENS, History
from gateway.context.plan import Plan, Planner
from gateway.context.policy import ContextPolicy
from gateway.conversation import Conversation
from tests.gateway.context.histories import HISTORIES, answer, beginnings, call, count, history, user, words

ROOM = 4000
POLICY = ContextPolicy(clear_at_least=100, document_tokens=300, keep_units=3)


def planner_of(conversation: Conversation, policy: ContextPolicy = POLICY, room: int = ROOM) -> Planner:
    return Planner(History(conversation, count, document_tokens=policy.document_tokens), policy, room)


def plan_of(conversation: Conversation, policy: ContextPolicy = POLICY, room: int = ROOM) -> Plan:
    return planner_of(conversation, policy, room).plan()


def left_out(plan: Plan) -> Plan:
    return replace(plan, num_units=0, num_tokens=0, num_sent_tokens=0)


def test_short_history_is_sent_as_it_is() -> None:
    plan = plan_of(history(user("hi"), answer("hello"), user("bye")))
    assert not plan.leaves_out
    assert plan.num_units == 3


FEW = settings(max_examples=25)


@FEW
@given(HISTORIES)
def test_memory_changes_nothing(conversation: Conversation) -> None:
    """From any earlier plan the rest of the way leads to the same one."""
    whole = plan_of(conversation)
    for beginning in beginnings(conversation):
        assert planner_of(conversation).plan(plan_of(beginning)) == whole


@FEW
@given(HISTORIES)
def test_between_cuts_nothing_that_was_sent_changes(conversation: Conversation) -> None:
    before: Plan | None = None
    for beginning in beginnings(conversation):
        plan = plan_of(beginning)
        if before is not None and plan.cut_at == before.cut_at:
            assert left_out(plan) == left_out(before)
        before = plan


@FEW
@given(HISTORIES, st.integers(2000, 8000))
def test_what_is_sent_is_under_the_high_watermark_or_the_last_turn_alone(conversation: Conversation, room: int) -> None:
    planner = planner_of(conversation, room=room)
    plan = planner.plan()
    high, _ = POLICY.watermarks(room, History(conversation, count, document_tokens=300).head_tokens)
    assert planner.size(plan) <= high or plan.num_away == plan.num_units - 1
    whole = replace(Plan(), num_units=plan.num_units)
    assert not plan.leaves_out or planner.size(plan) < planner.measured(whole)


@FEW
@given(HISTORIES)
def test_running_totals_are_those_of_the_parts(conversation: Conversation) -> None:
    for beginning in beginnings(conversation):
        planner = planner_of(beginning)
        plan = planner.plan()
        measured = History(beginning, count, document_tokens=300)
        assert planner.size(plan) == planner.measured(plan)
        assert plan.num_tokens == measured.head_tokens + sum(measured.sizes[measured.num_head :])
        away = [
            index
            for unit in measured.units[: plan.num_away]
            for index in range(unit.start, unit.start + len(unit.messages))
        ]
        assert plan.num_away_tokens == sum(measured.sizes[index] for index in away)


@FEW
@given(HISTORIES)
def test_first_turn_that_is_sent_is_a_users(conversation: Conversation) -> None:
    plan = plan_of(conversation)
    units = History(conversation, count, document_tokens=300).units
    first = plan.num_away if plan.pinned is None else plan.pinned
    assert units[first].is_of_user


def test_old_results_are_cleared_first_and_the_last_ones_kept() -> None:
    rounds = [[user(f"{n}?"), *call(n, words(250, n)), answer("so")] for n in range(12)]
    conversation = history(*rounds, user("and?"))
    plan = plan_of(conversation)
    results = [index for index, message in enumerate(conversation.messages) if message.role == "tool"]
    assert plan.cleared
    assert sorted(plan.cleared) == results[: len(plan.cleared)]
    assert not plan.cleared & set(results[-POLICY.keep_tool_results :])
    assert plan.num_away == 0
    kept = plan_of(conversation, replace(POLICY, exclude_tools=("search",)))
    assert not kept.cleared
    assert kept.num_away or kept.stubbed


def test_results_are_not_cleared_for_little() -> None:
    rounds = [[user(words(300)), *call(n, words(60)), answer(words(300))] for n in range(6)]
    conversation = history(*rounds, user("and?"))
    assert plan_of(conversation, replace(POLICY, clear_at_least=2000)).cleared == frozenset()


def test_document_in_the_question_leaves_the_question() -> None:
    text = f"Look at this.\n\n{words(5000)}\n\nWho is right?"
    conversation = history(user(text))
    measured = History(conversation, count, document_tokens=300)
    (document,) = measured.documents_of(1)
    assert text[: document.start] == "Look at this.\n\n"
    assert text[document.stop :] == "Who is right?"
    assert plan_of(conversation).stubbed == {document.place}


def test_question_of_an_agent_stays_while_its_steps_go() -> None:
    steps = [message for number in range(40) for message in call(number, words(120, number))]
    plan = plan_of(history(user("Mend the clock."), steps), replace(POLICY, clear_at_least=100_000))
    assert plan.pinned == 0
    assert plan.num_away > 1


def test_ten_thousand_turns_are_planned() -> None:
    turns = [message for number in range(5000) for message in (user(words(40, number)), answer(words(40, number)))]
    plan = plan_of(history(*turns, user("and?")))
    assert plan.num_units == 10_001
    assert plan.num_away > 9_900


def test_what_is_left_of_a_document_that_was_estimated_takes_what_it_has() -> None:
    """A long text is counted by samples: the whole one and the document in it by others."""

    def sampled(text: str) -> int:
        return len(text) // 4 if len(text) < 400 else len(text) // 8 + len(text) % 97

    text = f"Look at this.\n\n{words(3000)}\n\nWho is right?"
    measured = History(history(user(text)), sampled, document_tokens=300)
    (document,) = measured.documents_of(1)
    rest = sampled(text[: document.start]) + sampled(text[document.stop :])
    assert measured.sizes[1] == MESSAGE_TOKENS + document.num_tokens + rest


def test_planner_gives_the_same_when_it_plans_again() -> None:
    """As it does to tell what was sent before the last cut."""
    turns = [
        message
        for number in range(14)
        for message in (user(f"see\n\n{words(260, number)}\n\nwhy?"), answer(words(30, number)))
    ]
    conversation, policy = history(*turns, user("and?")), replace(POLICY, clear_at_least=100_000)
    again = planner_of(conversation, policy)
    plan = again.plan()
    assert plan.cut_at
    assert again.before_cut(plan) == planner_of(conversation, policy).before_cut(plan)
    assert again.size(again.before_cut(plan)) == again.measured(again.before_cut(plan))
