"""Registered documents that messages refer to: where their text stands, and that it stays there."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.conversation import Conversation, Message, texts_of
from gateway.errors import InvalidRequestError, NotFoundError
from gateway.model_files import ModelFiles
from gateway.prompts.documents import with_documents
from gateway.prompts.registered import RegisteredPrompts
from gateway.rendering import PromptRenderer
from gateway.template import ChatTemplate
from gateway.tokenizer import Tokenizer
from tests.gateway.support.documents import asking, conversation, part, registered, text
from tests.gateway.support.templates import TEMPLATES

RETURNS = "Returns of parcels\nWhoever wants to give a parcel back has thirty days, and pays for the way."
TARIFF = "Tariff\nA parcel of up to two kilograms costs five, and each further kilogram costs one more."
OWN = "Night shift\nThe door of the yard is closed at nine, and the key is with the porter."
SOURCES = {"returns": text(RETURNS), "tariff": text(TARIFF), "night": text(OWN)}
NAMES = st.sampled_from(["returns", "tariff", "night"])
ANSWER = Message("assistant", "it says a lot")


@pytest.fixture(scope="module")
def renderer(model_files: ModelFiles, tokenizer: Tokenizer) -> PromptRenderer:
    special = {"bos_token": model_files.bos_token, "eos_token": model_files.eos_token}
    return PromptRenderer(ChatTemplate(model_files.chat_template, special_tokens=special), tokenizer)


@pytest.fixture(scope="module")
def prompts(renderer: PromptRenderer) -> RegisteredPrompts:
    return registered(renderer, SOURCES, own={"night": "t"})


def words(conversation: Conversation) -> str:
    return "\n".join(text for message in conversation.messages for text in texts_of(message.content))


def test_document_of_the_first_turn_stands_before_all_else_as_it_is_registered(
    prompts: RegisteredPrompts, renderer: PromptRenderer
) -> None:
    asked = conversation(Message("system", "Be kind."), asking(part("returns")))
    made = with_documents(asked, prompts, "t")
    first, system, question = made.conversation.messages
    assert (first.role, first.content, system.content) == ("system", RETURNS, "Be kind.")
    assert texts_of(question.content) == ["[document returns, above: Returns of parcels]", "what does it say?"]
    (entry,) = made.head
    head = entry.compiled.head.token_ids
    for client in (
        made.conversation,
        with_documents(conversation(asking(part("pmt_returns"))), prompts, "t").conversation,
    ):
        np.testing.assert_array_equal(renderer.token_ids(client)[: len(head)], head)
    assert prompts.heads.num_public_tokens(renderer.token_ids(made.conversation)) == len(head)
    assert len(head) > len(renderer.token_ids(conversation(Message("system", RETURNS)))) - 12


@pytest.mark.parametrize("name", TEMPLATES)
def test_public_document_is_found_in_the_tokens_of_every_template_that_begins_with_it(
    name: str, tokenizer: Tokenizer
) -> None:
    """Of one that takes one system message alone the client's own stands in it, behind the document."""
    renderer = PromptRenderer(ChatTemplate(TEMPLATES[name], special_tokens={}), tokenizer)
    prompts = registered(renderer, SOURCES)
    head = prompts.versions_of("returns", "t")[0].compiled.head.token_ids
    assert RETURNS.partition(".")[0] in tokenizer.decode(head.tolist())
    for own in ((), (Message("system", "Be kind."),), (Message("system", "\n\nBe brief."),)):
        asked = with_documents(conversation(*own, asking(part("returns"))), prompts, "t").conversation
        tokens = renderer.token_ids(renderer.fit_head(asked))
        shown = tokenizer.decode(tokens.tolist())
        assert all(line in shown for line in RETURNS.split("\n"))
        assert all(message.content.strip() in shown for message in own if isinstance(message.content, str))
        np.testing.assert_array_equal(tokens[: len(head)], head)


def test_documents_of_the_head_are_in_one_order_and_each_once(prompts: RegisteredPrompts) -> None:
    """Public ones first, for what stands behind a tenant's own is shared with nobody."""
    orders = [
        ("night", "tariff", "returns"),
        ("returns", "night", "tariff", "night"),
        ("pmt_tariff", "returns", "night"),
    ]
    made = [with_documents(conversation(asking(*map(part, names))), prompts, "t") for names in orders]
    for one in made:
        assert [entry.prompt.name for entry in one.head] == ["returns", "tariff", "night"]
        assert [message.content for message in one.conversation.messages[:-1]] == [RETURNS, TARIFF, OWN]


def test_nothing_behind_what_is_not_public_counts_as_public(prompts: RegisteredPrompts) -> None:
    made = with_documents(conversation(asking(part("night"), part("tariff"), part("returns"))), prompts, "t")
    public, own = (prompts.versions_of(name, "t")[0] for name in ("tariff", "night"))
    assert [entry.prompt.name for entry in made.public_head(None)] == ["returns", "tariff"]
    assert [entry.prompt.name for entry in made.public_head(public)] == ["tariff", "returns", "tariff"]
    assert made.public_head(own) == ()


def test_document_that_a_later_turn_refers_to_first_stands_there_and_moves_nothing(prompts: RegisteredPrompts) -> None:
    turns = [asking(part("returns")), ANSWER, asking(part("tariff"), part("returns")), ANSWER, asking(part("tariff"))]
    made = with_documents(conversation(*turns), prompts, "t")
    assert [entry.prompt.name for entry in made.head] == ["returns"]
    assert [entry.prompt.name for entry in made.in_place] == ["tariff"]
    inserted, reference, _ = texts_of(made.conversation.messages[3].content)
    assert inserted == f"[document tariff]\n{TARIFF}"
    assert reference == "[document returns, above: Returns of parcels]"
    assert texts_of(made.conversation.messages[5].content)[0] == "[document tariff, above: Tariff]"


turns = st.lists(st.lists(NAMES, max_size=3), min_size=1, max_size=6)


@given(turns)
def test_more_turns_never_change_what_was_sent_before(prompts: RegisteredPrompts, turns: list[list[str]]) -> None:
    messages: list[Message] = []
    sent: tuple[Message, ...] = ()
    for names in turns:
        messages.append(asking(*map(part, names)))
        made = with_documents(conversation(*messages), prompts, "t").conversation.messages
        assert made[: len(sent)] == sent
        sent = made
        messages.append(ANSWER)


@given(turns)
def test_each_document_is_sent_once_and_nothing_else_is_touched(
    prompts: RegisteredPrompts, turns: list[list[str]]
) -> None:
    messages = [message for names in turns for message in (asking(*map(part, names)), ANSWER)]
    made = with_documents(conversation(Message("system", "Be kind."), *messages), prompts, "t")
    said = words(made.conversation)
    for name, source in (("returns", RETURNS), ("tariff", TARIFF), ("night", OWN)):
        num = sum(names.count(name) for names in turns)
        assert said.count(source) == min(1, num)
        assert said.count(f"[document {name}") == num
    assert said.count("what does it say?") == said.count("it says a lot") == len(turns)


def test_title_and_context_of_the_client_stand_with_the_reference(prompts: RegisteredPrompts) -> None:
    about = {"title": "What we promise", "context": "as of May"}
    first = with_documents(conversation(asking(part("returns", **about))), prompts, "t").conversation.messages[-1]
    assert texts_of(first.content)[0] == "[document returns, above: What we promise]\nas of May"
    later = conversation(Message("user", "hi"), ANSWER, asking(part("returns", **about)))
    inserted = with_documents(later, prompts, "t").conversation.messages[-1]
    assert texts_of(inserted.content)[0] == f"[document returns: What we promise]\nas of May\n{RETURNS}"


@pytest.mark.parametrize("name", ["file-abc", "night", ""])
def test_what_is_not_registered_for_the_tenant_is_not_found(prompts: RegisteredPrompts, name: str) -> None:
    field = "messages[2].content[0].file.file_id"
    with pytest.raises(NotFoundError, match="wanted the id or name of a registered document") as caught:
        with_documents(conversation(asking(part(name, field))), prompts, "other")
    assert caught.value.param == field
    assert str(caught.value).startswith(f"{field}: got '{name}'")


def test_prompt_that_is_more_than_a_text_is_no_document(renderer: PromptRenderer) -> None:
    turns = {"messages": [*text("Be kind.")["messages"], {"role": "user", "content": "hi"}]}
    sources = {"slotted": text("Today is {{day}}."), "turns": turns, "asked": {"messages": turns["messages"][1:]}}
    prompts = registered(renderer, sources, slots={"slotted": ("day",)})
    for name, what in (("slotted", "slots"), ("turns", "turns"), ("asked", "turns")):
        with pytest.raises(
            InvalidRequestError, match=f"got '{name}', a registered prompt with {what}, wanted one that"
        ):
            with_documents(conversation(asking(part(name))), prompts, "t")


def test_chat_that_refers_to_nothing_is_the_same(prompts: RegisteredPrompts) -> None:
    asked = conversation(Message("user", "hi"), ANSWER, Message("user", ({"type": "file", "file": {}},)))
    made = with_documents(asked, prompts, "t")
    assert made.conversation is asked
    assert made.documents == ()
