"""Long results of tools are shortened when they first come: for good, to what was asked for, never to more than they were."""

from __future__ import annotations

import random
from dataclasses import replace

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.context.compression import WHOLE, Result, shorten
from gateway.context.editor import ContextEditor
from gateway.context.estimate import estimated_tokens
from gateway.context.fitted import Fitted
from gateway.context.placeholders import GAP
from gateway.context.policy import ContextPolicy
from gateway.conversation import Conversation, Message, text_part, texts_of
from gateway.normalize.memory import TurnMemory
from tests.gateway.context.facts import facts, filler
from tests.gateway.context.histories import (
    HISTORIES,
    ODD_TEXTS,
    PROPER_HISTORIES,
    answer,
    beginnings,
    call,
    history,
    user,
    words,
)
from tests.gateway.context.test_placeholders import EVIL

MOST = 200
POLICY = ContextPolicy(
    clear_at_least=100, document_tokens=150, keep_units=3, keep_tool_results=1, compress_tool_results_over=MOST
)
ROOMS = st.sampled_from([1000, 3000, 10**6])
SOME = settings(max_examples=15)
LONG = "".join(f"Line {number} of the report says {words(8, number)}. " for number in range(110))


def editor() -> ContextEditor:
    return ContextEditor(estimated_tokens, TurnMemory())


def fit(conversation: Conversation, room: int = 10**6, policy: ContextPolicy = POLICY) -> Fitted:
    return editor().edit(conversation, policy, room, "t")


def result_of(fitted: Fitted, place: int = -1) -> str:
    results = [message for message in fitted.conversation.messages if message.role == "tool"]
    return "\n".join(texts_of(results[place].content))


def short(text: str, asked: str = "", most: int = MOST) -> str:
    return shorten(Result(text, "search", asked), most, estimated_tokens).text


@SOME
@given(HISTORIES | PROPER_HISTORIES)
def test_result_never_changes_whatever_follows(conversation: Conversation) -> None:
    room, sent = 10**6, ()
    for beginning in beginnings(conversation):
        messages = fit(beginning, room).conversation.messages
        assert messages[: len(sent)] == sent
        sent = messages


@SOME
@given(HISTORIES | PROPER_HISTORIES, ROOMS)
def test_memory_changes_nothing_and_only_a_cut_changes_what_was_sent(conversation: Conversation, room: int) -> None:
    warm, tiny, sent = editor(), ContextEditor(estimated_tokens, TurnMemory(max_bytes=40_000)), ()
    for beginning in beginnings(conversation):
        fitted = fit(beginning, room)
        assert warm.edit(beginning, POLICY, room, "t") == fitted
        assert tiny.edit(beginning, POLICY, room, "t") == fitted
        assert fitted.is_new_cut or fitted.conversation.messages[: len(sent)] == sent
        sent = fitted.conversation.messages


@SOME
@given(HISTORIES | PROPER_HISTORIES)
def test_calls_keep_their_results_and_edits_add_up(conversation: Conversation) -> None:
    fitted = fit(conversation)
    assert [(sent.role, sent.fields) for sent in fitted.conversation.messages] == [
        (came.role, came.fields) for came in conversation.messages
    ]
    gains = [
        sum(map(estimated_tokens, texts_of(came.content))) - sum(map(estimated_tokens, texts_of(sent.content)))
        for came, sent in zip(conversation.messages, fitted.conversation.messages, strict=True)
        if came != sent
    ]
    assert all(gain > 0 for gain in gains)
    assert [(edit.kind, edit.number) for edit in fitted.edits] == [("compress_tool_results", len(gains))] * bool(gains)
    assert abs(fitted.tokens_before - fitted.tokens_after - sum(gains)) <= len(
        gains
    )  # texts are joined by a line's end
    assert not fitted.is_new_cut


@given(ODD_TEXTS | st.sampled_from(EVIL).map(lambda text: text * 40), ODD_TEXTS, st.integers(1, 300))
def test_takes_no_more_than_it_may_and_quotes_the_text_in_order(text: str, asked: str, most: int) -> None:
    made = short(text, asked, most)
    if estimated_tokens(text) <= most:
        assert not made
    if made:
        assert estimated_tokens(made) < estimated_tokens(text)
        inner = made.partition("result\n")[2]
        assert text.count("`" * 3) or estimated_tokens(made) <= most
        position = 0
        for part in inner.rpartition("\n```")[0].split(GAP) if "`" not in text else ():
            position = text.index(part.strip("\n").rstrip(), position)


def test_what_was_asked_for_survives() -> None:
    rng, kept = random.Random(7), 0
    found = [fact for fact, _ in zip(facts(rng), range(60), strict=False)]
    for fact in found:
        scraps = filler(rng, 20_000)
        scraps.insert(rng.randrange(len(scraps)), fact.text)
        kept += fact.answer in short("".join(scraps), fact.question, 500)
    assert kept >= 0.95 * len(found)


def test_arguments_of_the_call_and_the_question_before_it_decide() -> None:
    text = LONG[:4000] + "\n\nThe zebra weighs 7391 kg.\n\n" + LONG[4000:]

    def sent(question: str, arguments: str, *behind: Message) -> str:
        calling, result = call(1, text)
        said = {**calling.fields["tool_calls"][0], "function": {"name": "search", "arguments": arguments}}
        return result_of(fit(history(user(question), replace(calling, fields={"tool_calls": [said]}), result, *behind)))

    assert "7391" in sent("How heavy is the zebra?", "{}")
    assert "7391" in sent("Go on.", '{"animal": "zebra"}')
    assert "7391" not in sent("Go on.", "{}", answer("so"), user("How heavy is the zebra?"))


def test_says_what_it_was_and_how_much_is_left_out() -> None:
    made = short(LONG, "nothing of it: xyzzy")
    assert made.startswith("[Parts of the result of search: ")
    assert LONG.startswith(made.split("result\n")[1].split(GAP)[0].rstrip())
    assert LONG.rstrip().endswith(made.rpartition(GAP)[2].rpartition("\n```")[0].strip())


def test_data_is_cut_at_lines() -> None:
    rows = [orjson.dumps({"row": number, "text": "amber basil"}).decode() for number in range(400)]
    made = short("\n".join(rows), "where is row 207?")
    lines = made.split("result\n")[1].rpartition("\n```")[0].splitlines()
    assert rows[207] in lines
    assert set(lines) <= {*rows, GAP}


@pytest.mark.parametrize(
    ("content", "fields"),
    [("", {}), (None, {}), ("short", {}), (LONG, {"is_error": True}), ((text_part("a"), text_part("")), {})],
)
def test_errors_and_short_results_stay(content: str, fields: dict[str, bool]) -> None:
    calling, result = call(1, "")
    conversation = history(user("go"), calling, replace(result, content=content, fields={**result.fields, **fields}))
    assert fit(conversation).conversation is conversation


def test_excluded_tools_stay() -> None:
    conversation = history(user("go"), call(1, LONG))
    assert fit(conversation, policy=replace(POLICY, exclude_tools=("search",))).conversation is conversation
    assert fit(conversation, policy=replace(POLICY, compress_tool_results_over=0)).conversation is conversation


def test_several_texts_are_one_result_and_images_stay() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
    calling, result = call(1, "")
    content = (text_part(LONG[:1000]), image, text_part(LONG[1000:]))
    sent = fit(history(user("go"), calling, replace(result, content=content))).conversation.messages[-1].content
    assert isinstance(sent, tuple)
    assert [part["type"] for part in sent] == ["text", "image_url"]
    assert sent[1] == image
    assert estimated_tokens(sent[0]["text"]) <= MOST


def test_chat_needs_fewer_cuts() -> None:
    turns = [message for number in range(12) for message in (user("go on"), *call(number, words(600, number)))]

    def num_cuts(policy: ContextPolicy) -> int:
        return sum(fit(beginning, 4000, policy).is_new_cut for beginning in beginnings(history(*turns)))

    assert num_cuts(POLICY) < num_cuts(replace(POLICY, compress_tool_results_over=0))


def test_what_was_left_out_is_found_behind_a_cut() -> None:
    """Not before: where nothing is cut, no passages are given."""
    text = LONG[:4000] + "\n\nThe zebra weighs 7391 kg.\n\n" + LONG[4000:]
    turns = [user("Look it up."), *call(1, text), answer("Done.")]
    asked = user("How heavy is the zebra?")
    assert "7391" not in str(fit(history(*turns, asked)).conversation)
    old = [message for number in range(9) for message in (user(words(100, number)), answer(words(100, number)))]
    fitted = fit(history(*old, *turns, asked), 2500, replace(POLICY, document_tokens=1000))
    assert fitted.is_new_cut
    assert GAP in result_of(fitted)
    assert "7391" in str(fitted.conversation.messages[-1].content)


def test_stub_of_a_shortened_result_tells_of_the_result() -> None:
    policy = replace(POLICY, document_tokens=100, keep_tool_results=9)
    fitted = fit(history(user("go"), *call(1, LONG), *call(2, LONG), answer("so"), user("and?")), 440, policy)
    stubs = [message for message in fitted.conversation.messages if str(message.content).startswith("[Document d")]
    assert stubs
    assert all(f"{estimated_tokens(LONG)} tokens" in str(stub.content) for stub in stubs)


def test_audit_tells_what_it_would_shorten() -> None:
    conversation = history(user("go"), call(1, LONG))
    told, made = editor().audit(conversation, POLICY, 10**6, "t"), fit(conversation)
    assert (told.edits, told.tokens_before, told.tokens_after) == (made.edits, made.tokens_before, made.tokens_after)


def test_is_shortened_once() -> None:
    counted = list[str]()

    def noting(text: str) -> int:
        counted.append(text)
        return estimated_tokens(text)

    noticing, conversation = ContextEditor(noting, TurnMemory()), history(user("go"), call(1, LONG))
    first = noticing.edit(conversation, POLICY, 10**6, "t")
    counted.clear()
    assert noticing.edit(history(*conversation.messages[1:], answer("so"), user("and?")), POLICY, 10**6, "t").edits == (
        first.edits
    )
    assert max(map(len, counted)) < 100


def test_nothing_gained_is_nothing_done() -> None:
    assert shorten(Result("word " * 30, "search", ""), 20, estimated_tokens) == WHOLE


def test_results_of_one_length_are_told_apart() -> None:
    one = editor()
    for text, question in ((LONG, "line 31"), (LONG.swapcase(), "line 31"), (LONG, "line 72")):
        conversation = history(user(question), call(1, text))
        assert one.edit(conversation, POLICY, 10**6, "t") == fit(conversation)
