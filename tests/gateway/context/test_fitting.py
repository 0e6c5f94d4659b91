"""What comes out of a cut: whole turns, whole calls, whole letters, never more than came in, stable at its beginning."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.context.chunks import splits_letter
from gateway.context.editor import ContextEditor
from gateway.context.estimate import estimated_tokens
from gateway.context.fitted import Fitted
from gateway.context.history import History
from gateway.context.policy import ContextPolicy
from gateway.conversation import Content, Conversation, Message, texts_of
from gateway.normalize.memory import TurnMemory
from gateway.template import ChatTemplate
from tests.gateway.context.histories import (
    ODD_HISTORIES,
    PROPER_HISTORIES,
    answer,
    beginnings,
    history,
    user,
    words,
)

POLICY = ContextPolicy(clear_at_least=50, document_tokens=150, keep_units=3, keep_tool_results=1)
ROOMS = st.sampled_from([300, 1000, 3000])
ANY_HISTORIES = ODD_HISTORIES | PROPER_HISTORIES
SOME = settings(max_examples=15)

CHATML = """\
{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content }}{% for c in m.tool_calls %}
{{ c.function | tojson }}{% endfor %}{{ '<|im_end|>\n' }}{% endfor %}"""
ALTERNATING = """\
{% set ns = namespace(last='assistant') %}{% for m in messages %}{% if m.role == 'system' %}\
{% if not loop.first %}{{ raise_exception('a system message is the first') }}{% endif %}{{ m.content }}\
{% elif m.role == 'tool' %}{% if ns.last != 'calls' %}{{ raise_exception('nothing was called') }}{% endif %}\
[RESULT]{{ m.content }}{% else %}{% if (m.role == 'user') != (ns.last == 'assistant') %}\
{{ raise_exception('roles must alternate') }}{% endif %}[{{ m.role }}]{{ m.content }}\
{% set ns.last = 'calls' if m.tool_calls else m.role %}{% endif %}{% endfor %}"""
"""Takes what follows a call to be of the assistant again."""


def fit(conversation: Conversation, room: int = 1000, policy: ContextPolicy = POLICY) -> Fitted:
    return ContextEditor(estimated_tokens, TurnMemory()).edit(conversation, policy, room, "t")


def size(conversation: Conversation, document_tokens: int = 10**9) -> int:
    measured = History(conversation, estimated_tokens, document_tokens=document_tokens)
    return measured.head_tokens + sum(measured.sizes[measured.num_head :])


def sent_of(before: Conversation, fitted: Fitted) -> list[tuple[int, Message]]:
    """Messages of turns as they are sent, with the index that they had; what was put before them is left out."""
    units = History(before, estimated_tokens, document_tokens=150).units
    numbers = range(fitted.plan.num_away, len(units)) if fitted.plan.leaves_out else range(len(units))
    pinned = [] if fitted.plan.pinned is None else [fitted.plan.pinned]
    indices = [
        units[number].start + offset for number in (*pinned, *numbers) for offset in range(len(units[number].messages))
    ]
    behind_head = fitted.conversation.messages[before.num_head_messages :]
    assert len(behind_head) - len(indices) in (0, 1)
    return list(zip(indices, behind_head[len(behind_head) - len(indices) :], strict=True))


BLOCK = re.compile(r"\[(?:Summary|Quoted)[^\n]*\n")
FENCE = re.compile(r"(`{3,})(\S+)\n")


def quotes_in(blocks: str) -> list[tuple[str, str]]:
    """Labels and texts of what was put before a user's words, read as a reader of Markdown does."""
    found = []
    while header := BLOCK.match(blocks):
        blocks = blocks[header.end() :]
        while fence := FENCE.match(blocks):
            end = re.compile(rf"^`{{{len(fence[1])},}}[ \t]*\n", re.MULTILINE).search(blocks, fence.end())
            assert end is not None
            found.append((fence[2], blocks[fence.end() : end.start() - 1]))
            blocks = blocks[end.end() :]
        assert blocks[0] == "\n"
        blocks = blocks[1:]
    assert blocks == ""
    return found


def others_of(content: Content) -> list[object]:
    return [part for part in content if part["type"] != "text"] if isinstance(content, tuple) else []


@SOME
@given(ANY_HISTORIES, ROOMS)
def test_head_is_untouched_and_what_is_kept_is_the_same(before: Conversation, room: int) -> None:
    fitted = fit(before, room)
    after, num_head = fitted.conversation, before.num_head_messages
    assert after.messages[:num_head] == before.messages[:num_head]
    assert (after.tools, after.fields) == (before.tools, before.fields)
    stubbed = {place.message for place in fitted.plan.stubbed}
    for index, message in sent_of(before, fitted):
        was = before.messages[index]
        assert (message.role, message.fields) == (was.role, was.fields)
        assert others_of(message.content) == others_of(was.content)
        if index not in fitted.plan.cleared | stubbed:
            text, words = "".join(texts_of(message.content)), "".join(texts_of(was.content))
            assert text.endswith(words)
            quotes_in(text[: len(text) - len(words)])
            assert message.role == "user" or message is was


@SOME
@given(ANY_HISTORIES, ROOMS)
def test_it_is_never_longer_and_what_is_told_adds_up(before: Conversation, room: int) -> None:
    fitted = fit(before, room)
    assert fitted.tokens_before == size(before, POLICY.document_tokens)
    assert size(fitted.conversation) <= fitted.tokens_after <= fitted.tokens_before
    assert sum(edit.cleared_tokens for edit in fitted.edits) == fitted.tokens_before - fitted.tokens_after
    assert fitted.edits or fitted.conversation == before


def doubles(conversation: Conversation) -> list[str]:
    turns = conversation.messages[conversation.num_head_messages :]
    return [first.role for first, second in itertools.pairwise(turns) if first.role == second.role]


@SOME
@given(ANY_HISTORIES, ROOMS)
def test_roles_that_alternated_still_do(before: Conversation, room: int) -> None:
    after = fit(before, room).conversation
    assert doubles(before).count("user") >= doubles(after).count("user")
    assert doubles(before).count("assistant") >= doubles(after).count("assistant")
    turns = before.messages[before.num_head_messages :]
    if turns and turns[0].role == "user":
        assert after.messages[before.num_head_messages].role == "user"


def test_quotes_take_no_more_than_was_left_out() -> None:
    asked = history(user("The fox is red."), answer("The fox is quick."), user("Where is the fox? " + "x" * 9000))
    policy = ContextPolicy(document_tokens=10**6, keep_units=1)
    fitted = fit(asked, 1000, policy)
    assert fitted.plan.num_away == 2
    assert size(fitted.conversation) <= size(asked)


def test_quotes_take_no_more_than_there_is_room_for() -> None:
    """Where head and last turn leave no room, nothing is quoted that would make a prompt too long."""
    rounds = [[user(f"Where is the fox of house {n}?"), answer(f"The fox of house {n} is red.")] for n in range(40)]
    asked = history(*rounds, user(f"Where is the fox of house 7? {words(300)}"))
    policy = ContextPolicy(passage_share=0.4, document_tokens=10**6)
    for room in (1500, 800, 600, 500, 400):
        fitted = fit(asked, room, policy)
        bare = fit(asked, room, replace(policy, passage_share=0.0, summary="off"))
        high, _ = policy.watermarks(room, History(asked, estimated_tokens, document_tokens=10**9).head_tokens)
        assert size(fitted.conversation) <= max(high, size(bare.conversation))


def test_system_turn_never_passes_for_the_head() -> None:
    round_of = [user(words(60)), answer(words(60)), Message("system", "Be brief.")]
    for room in range(300, 900, 20):
        fitted = fit(history(*round_of * 9, user("And?")), room)
        assert fitted.plan.num_away
        assert [message.role for message in fitted.conversation.messages[:2]] == ["system", "user"]
        assert not doubles(fitted.conversation)


@SOME
@given(PROPER_HISTORIES, ROOMS, st.sampled_from([CHATML, ALTERNATING]))
def test_strict_templates_take_it(before: Conversation, room: int, template: str) -> None:
    render(template, before)
    render(template, fit(before, room).conversation)


def render(template: str, conversation: Conversation) -> str:
    messages = [
        {"role": message.role, "content": "\n".join(texts_of(message.content)), **message.fields}
        for message in conversation.messages
    ]
    return ChatTemplate(template, special_tokens={}).render(messages, add_generation_prompt=False)


@SOME
@given(ANY_HISTORIES, ROOMS)
def test_calls_and_results_stay_together(before: Conversation, room: int) -> None:
    after = fit(before, room).conversation
    asked = [pair for pair in pairs_of(before) if pair[0] is not None]
    assert all(pair in asked for pair in pairs_of(after) if pair[0] is not None)
    assert len([pair for pair in pairs_of(after) if pair[0] is None]) <= len(pairs_of(before)) - len(asked)


def pairs_of(conversation: Conversation) -> list[tuple[list[str] | None, list[str]]]:
    """Ids of the calls of each turn, None where it called nothing, and of the results behind it."""
    found: list[tuple[list[str] | None, list[str]]] = []
    for message in conversation.messages[conversation.num_head_messages :]:
        if message.role != "tool":
            calls = [call["id"] for call in message.fields.get("tool_calls", ())]
            found.append((calls or None, []))
        elif found:
            found[-1][1].append(message.fields["tool_call_id"])
    return [pair for pair in found if pair[0] or pair[1]]


@SOME
@given(ANY_HISTORIES, ROOMS)
def test_letters_and_code_blocks_stay_whole(before: Conversation, room: int) -> None:
    fitted = fit(before, room)
    measured = History(before, estimated_tokens, document_tokens=150)
    for place in fitted.plan.stubbed:
        text = texts_of(before.messages[place.message].content)[place.text]
        (document,) = (found for found in measured.documents_of(place.message) if found.place == place)
        assert not splits_letter(text, document.start)
        assert not splits_letter(text, document.stop)
        if not opens_code(text):
            assert not opens_code(text[: document.start])
            assert not opens_code(text[document.stop :])
    for index, message in sent_of(before, fitted):
        if not any(map(opens_code, texts_of(before.messages[index].content))):
            assert not any(map(opens_code, texts_of(message.content)))


def opens_code(text: str) -> bool:
    """Whether a code block is open at the end."""
    opened = ""
    for line in text.split("\n"):
        fence = re.match(r" {0,3}(`{3,}|~{3,})(.*)", line)
        if fence and not opened and not (fence[1][0] == "`" and "`" in fence[2]):
            opened = fence[1]
        elif fence and opened and fence[1].startswith(opened) and not fence[2].strip():
            opened = ""
    return bool(opened)


@settings(max_examples=10)
@given(ANY_HISTORIES)
def test_between_cuts_the_bytes_that_were_sent_stay(conversation: Conversation) -> None:
    editor = ContextEditor(estimated_tokens, TurnMemory())
    before = ""
    for beginning in beginnings(conversation):
        fitted = editor.edit(beginning, POLICY, 1000, "t")
        rendered = render(CHATML, fitted.conversation)
        assert fitted.is_new_cut or rendered.startswith(before)
        before = rendered


def test_other_processes_send_the_same() -> None:
    code = (
        "from tests.gateway.context.histories import *\n"
        "from tests.gateway.context.test_fitting import fit, render, CHATML\n"
        "turns = [[user(s * 40 + words(300, n)), *call(n, s * 90), answer(words(60, n))] for n, s in enumerate(SCRIPTS)]\n"
        "print(ascii(render(CHATML, fit(history(*turns, user('the harbor gate, 预算?')), 3000).conversation)))"
    )
    runs = [
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
            timeout=60,
        ).stdout
        for seed in ("1", "2")
    ]
    assert runs[0] == runs[1]
    assert b"[Summary" in runs[0]
    assert b"[Quoted" in runs[0]
