"""The replay of long chats on small ones: what makes facts hard holds, and the policy computes less than its rivals."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from benchmarks.context import problems
from benchmarks.context_chats import Chat, make_chats
from benchmarks.context_policies import MiddleOut, NoPolicy, Ours, Policy, Sent, SlidingWindow
from benchmarks.context_replay import Replay, Tally
from benchmarks.context_transcripts import read_chats
from gateway.context.policy import ContextPolicy
from gateway.conversation import Conversation
from gateway.rendering import PromptRenderer
from gateway.template import ChatTemplate
from gateway.tokenizer import Tokenizer
from tests.gateway.support.tiny_model import TEMPLATE, write_model

WINDOW = 4096
CHATS = make_chats(1, 256, 1)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer(write_model(tmp_path_factory.mktemp("context")).tokenizer_file)


@pytest.fixture(scope="module")
def renderer(tokenizer: Tokenizer) -> PromptRenderer:
    return PromptRenderer(ChatTemplate(TEMPLATE, special_tokens={}), tokenizer)


def play(policy: Policy, renderer: PromptRenderer, tokenizer: Tokenizer, chats: list[Chat]) -> Tally:
    return Replay(policy, renderer, tokenizer, window=WINDOW, num_blocks=WINDOW // 16).play(chats)


@pytest.mark.parametrize("chat", CHATS, ids=lambda chat: chat.family)
def test_ours_computes_least_and_changes_no_prefix(chat: Chat, renderer: PromptRenderer, tokenizer: Tokenizer) -> None:
    short = replace(chat, messages=chat.messages[:44])
    policies = [
        NoPolicy(renderer),
        SlidingWindow(renderer),
        MiddleOut(renderer),
        Ours(renderer, tokenizer, ContextPolicy(), "ours"),
    ]
    none, sliding, middle, ours = (play(policy, renderer, tokenizer, [short]) for policy in policies)
    assert none.num_refused > 3, "it outgrows the window"
    assert ours.num_refused == middle.num_refused == 0
    assert ours.prefill_tokens < min(sliding.prefill_tokens, middle.prefill_tokens)
    assert ours.num_cuts >= 2
    assert ours.changed_prefixes == none.changed_prefixes == 0


def test_a_prefix_that_changes_is_seen(renderer: PromptRenderer, tokenizer: Tokenizer) -> None:
    class Wanders(SlidingWindow):
        def prompt(self, conversation: Conversation, window: int) -> Sent | None:
            sent = super().prompt(conversation, window)
            return sent and Sent(sent.prompt, is_cut=False)

    chat = replace(CHATS[1], messages=CHATS[1].messages[:44])
    tally = play(Wanders(renderer), renderer, tokenizer, [chat])
    assert tally.changed_prefixes > 3
    assert "ours: a prefix changed between cuts" in problems({"ours": tally})


@pytest.mark.parametrize("seed", [1, 2])
def test_each_answer_stands_in_one_place_before_its_question(seed: int) -> None:
    chats = make_chats(seed, 2048, 1)
    assert chats == make_chats(seed, 2048, 1), "the same seed gives the same chats"
    for chat in chats:
        assert len(chat.questions) > 20
        for turn, questions in chat.questions.items():
            said = "\n".join(message["content"] for message in chat.messages[:turn])
            assert all(said.count(question.answer) == 1 for question in questions)
            assert not any(question.answer in chat.messages[turn - 1]["content"] for question in questions) or (
                len(chat.messages[turn - 1]["content"]) > 500
            ), "the question does not tell it"


def test_what_a_recording_quotes_of_old_turns(tmp_path) -> None:
    filler = [{"role": role, "content": "Well."} for role in ("assistant", "user") * 4]
    call = {"id": "c", "type": "function", "function": {"name": "pay", "arguments": '{"order": "#W4410", "n": 12345}'}}
    turns = [
        {"role": "user", "content": "It is about #W4410."},
        *filler,
        {"role": "user", "content": "Pay 12345."},
        {"role": "assistant", "content": None, "tool_calls": [call]},
    ]
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "a.json").write_text(json.dumps([{"traj": turns}]))
    ((chat,),) = read_chats(tmp_path).values()
    assert [question.answer for questions in chat.questions.values() for question in questions] == ["#W4410"]
    assert list(chat.questions) == [len(chat.messages) - 1]
