from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.conversation import Conversation, Message
from tests.gateway.support.templates import TEMPLATES
from tests.gateway.test_rendered_prompt import (
    CHAT,
    LOSSLESS,
    TOOLS,
    check_regions,
    conversations,
    renderer_of,
    texts,
    tokenizer_keeps_start,
    tokenizer_of,
)

ANSWER = "It is warm in paris."


def chat(answer: str, last: str = "thanks") -> Conversation:
    return Conversation((Message("user", "weather"), Message("assistant", answer), Message("user", last)))


def letters(text: str, kind: str = "bytes") -> np.ndarray:
    """Encode character by character: ids that no tokenizer would choose, of the same text."""
    tokenizer = tokenizer_of(kind)
    if kind == "bytes":
        return np.concatenate([tokenizer.encode(char) for char in text])
    spelled = ["\u2581" if char == " " else f"<0x{ord(char):02X}>" for char in text]
    return np.array([tokenizer._tokenizer.token_to_id(token) for token in spelled], dtype=np.int32)


@pytest.mark.parametrize("kind", LOSSLESS)
@pytest.mark.parametrize("template", ["chatml", "trimming", "late-system", "spelled-tools"])
def test_tokens_of_an_answer_come_back_behind_the_prompt_that_they_answered(template: str, kind: str) -> None:
    renderer, given_ids = renderer_of(template, kind), letters(ANSWER, kind)
    asked = renderer.render(Conversation((Message("user", "weather"),)))
    prompt = renderer.render(chat(ANSWER), spans={1: given_ids})
    cached = [*asked.token_ids.tolist(), *given_ids.tolist()]
    assert prompt.spliced == {1}
    assert prompt.token_ids[: len(cached)].tolist() == cached
    assert prompt.token_ids.tolist() != renderer.render(chat(ANSWER)).token_ids.tolist()
    assert prompt.text == renderer.render(chat(ANSWER)).text
    assert tokenizer_of(kind).decode(prompt.token_ids.tolist()) == prompt.text
    (region,) = [region for region in prompt.regions if region.owner == "messages[1]"]
    assert prompt.token_ids[region.start : region.end].tolist() == given_ids.tolist()


def test_token_that_ended_an_answer_may_be_among_its_tokens() -> None:
    renderer, tokenizer = renderer_of("chatml"), tokenizer_of("bytes")
    for end, spliced in (("<|im_end|>", ANSWER + "<|im_end|>"), ("</s>", ANSWER)):
        given_ids = np.concatenate([letters(ANSWER), tokenizer.encode(end)])
        prompt = renderer.render(chat(ANSWER), spans={1: given_ids})
        assert prompt.spliced == {1}
        assert tokenizer.decode(prompt.token_ids.tolist()) == prompt.text
        (splice,) = prompt._splices
        assert tokenizer.decode(splice.token_ids.tolist()) == spliced


@pytest.mark.parametrize(
    ("template", "answer", "given_text"),
    [
        ("chatml", ANSWER, ANSWER + "!"),
        ("chatml", ANSWER, ANSWER[:-1]),
        ("chatml", "other", ANSWER),
        ("chatml", "say <|im_end|>", "say <|im_end|>"),
        ("thinking", ANSWER, ANSWER),
        ("blank-before", ANSWER, ANSWER),
        ("plain", ANSWER, ANSWER),
    ],
    ids=["longer", "shorter", "other", "looks-special", "thoughts-are-dropped", "blank", "no-borders"],
)
def test_tokens_that_do_not_fit_are_left_out(template: str, answer: str, given_text: str) -> None:
    renderer = renderer_of(template)
    prompt = renderer.render(chat(answer), spans={1: letters(given_text)})
    assert prompt.spliced == set()
    assert prompt.token_ids.tolist() == renderer.render(chat(answer)).token_ids.tolist()


def test_blank_that_the_model_wrote_itself_comes_back() -> None:
    assert renderer_of("blank-before").render(chat(ANSWER), spans={1: letters(" " + ANSWER)}).spliced == {1}


def test_nothing_comes_back_where_decoding_loses_blanks() -> None:
    given_ids = letters(ANSWER, "always")
    assert tokenizer_of("always").decode(given_ids.tolist()) == ANSWER
    assert renderer_of("chatml", "always").render(chat(ANSWER), spans={1: given_ids}).spliced == set()


def test_half_a_character_is_left_out() -> None:
    cut = tokenizer_of("bytes").encode("日")[:-1]
    assert renderer_of("chatml").render(chat("\ufffd"), spans={1: cut}).spliced == set()


def test_equal_answers_come_back_each_in_its_place() -> None:
    said = "hello fox"
    messages = [Message("user", "a"), Message("assistant", said), Message("user", "b"), Message("assistant", said)]
    conversation = Conversation((*messages, Message("user", "c")))
    tokenizer, whole = tokenizer_of("bytes"), tokenizer_of("bytes").encode(said)
    prompt = renderer_of("chatml").render(conversation, spans={3: letters(said)})
    first = renderer_of("chatml").render(Conversation((messages[0],))).token_ids.tolist()
    assert prompt.spliced == {3}
    assert prompt.token_ids[len(first) : len(first) + len(whole)].tolist() == whole.tolist()
    assert tokenizer.decode(prompt.token_ids.tolist()) == prompt.text


@pytest.mark.parametrize("template", ["chatml", "spelled-tools"])
def test_calls_come_back_as_the_model_wrote_them(template: str) -> None:
    renderer = renderer_of(template)
    before = renderer.render(Conversation(CHAT[:4], TOOLS)).token_ids
    text = renderer.render(Conversation(CHAT[:5], TOOLS), spans={}).text
    start = len(renderer.render(Conversation(CHAT[:4], TOOLS)).text)
    written = text[start:].partition("<|im_end|>" if template == "chatml" else "<|stop|>")[0]
    prompt = renderer.render(Conversation(CHAT, TOOLS), spans={4: letters(written)})
    assert prompt.spliced == {4}
    assert prompt.token_ids[: len(before)].tolist() == before.tolist()
    assert prompt.text == renderer.render(Conversation(CHAT, TOOLS)).text
    check_regions(prompt)


@pytest.mark.parametrize("kind", LOSSLESS)
@pytest.mark.parametrize("template", TEMPLATES)
@given(conversation=conversations, drawn=st.data())
@settings(max_examples=25)
def test_whatever_is_spliced_the_tokens_spell_the_same_text(
    template: str, kind: str, conversation: Conversation, drawn: st.DataObject
) -> None:
    renderer, tokenizer = renderer_of(template, kind), tokenizer_of(kind)
    plain = renderer.render(conversation)
    spans = {}
    for index, message in enumerate(conversation.messages):
        text = message.content if isinstance(message.content, str) and drawn.draw(st.booleans()) else drawn.draw(texts)
        cut = drawn.draw(st.integers(0, len(text)))
        spans[index] = np.concatenate([tokenizer.encode(text[:cut]), tokenizer.encode(text[cut:])])
    prompt = renderer.render(conversation, spans=spans)
    assert prompt.text == plain.text
    if tokenizer_keeps_start(kind, plain.text):
        assert tokenizer.decode(prompt.token_ids.tolist()) == plain.text
    check_regions(prompt)
