"""What every prompt must hold, whatever the template and the tokenizer."""

from __future__ import annotations

import functools
import json
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.conversation import Conversation, Message, text_part
from gateway.rendering import PromptRenderer, RenderedPrompt
from gateway.template import ChatTemplate
from gateway.tokenizer import Tokenizer
from tests.gateway.support.templates import TEMPLATES, write_tokenizer

LOSSLESS = ["bytes", "first", "never"]
KINDS = [*LOSSLESS, "nfc", "always"]


@functools.cache
def tokenizer_of(kind: str) -> Tokenizer:
    return Tokenizer(write_tokenizer(Path(tempfile.mkdtemp()) / "tokenizer.json", kind))


@functools.cache
def renderer_of(template: str, kind: str = "bytes") -> PromptRenderer:
    special = {"bos_token": "<s>", "eos_token": "</s>"}
    return PromptRenderer(ChatTemplate(TEMPLATES[template], special_tokens=special), tokenizer_of(kind))


words = st.sampled_from(
    [
        "user",
        "a",
        "assistant\n",
        " ",
        "\n\n",
        "paris",
        "</think>",
        "é",
        "日本",
        "\t{",
        '"',
        "get_weather",
        "x" * 50,
        "1",
    ]
)
texts = st.lists(words, max_size=6).map("".join)
contents = st.one_of(texts, st.lists(texts.map(text_part), min_size=1, max_size=3).map(tuple))
names = st.sampled_from(["get_weather", "search", "f"])
arguments = st.dictionaries(st.sampled_from(["city", "unit"]), texts, max_size=2).map(json.dumps)


@st.composite
def tools(draw: st.DrawFn) -> dict[str, object]:
    properties = {key: {"type": "string", "description": draw(texts)} for key in draw(st.sets(names, max_size=2))}
    function = {"name": draw(names), "description": draw(texts), "parameters": {"properties": properties}}
    return {"type": "function", "function": function}


@st.composite
def messages(draw: st.DrawFn) -> Message:
    role = draw(st.sampled_from(["system", "user", "assistant", "tool"]))
    content = draw(contents)
    if role == "tool":
        return Message(role, content, {"tool_call_id": draw(st.sampled_from(["1", "call-01"]))})
    if role == "assistant" and draw(st.booleans()):
        call = {"id": "call-01", "type": "function", "function": {"name": draw(names), "arguments": draw(arguments)}}
        return Message(role, draw(st.none() | st.just(content)), {"tool_calls": [call]})
    return Message(role, content)


conversations = st.builds(
    lambda turns, last, known: Conversation((*turns, Message("user", last)), tuple(known)),
    st.lists(messages(), max_size=6),
    contents,
    st.lists(tools(), max_size=2),
)
marked = st.sampled_from(["<|im_end|>", "<|eot|>", "</s>", "[INST]", "<|stop|>", "<|eos|>"])


def check_regions(prompt: RenderedPrompt) -> None:
    borders = [0, *(region.end for region in prompt.regions)]
    assert [region.start for region in prompt.regions] == borders[:-1]
    assert borders[-1] == len(prompt.token_ids)
    assert all(region.start < region.end for region in prompt.regions)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("template", TEMPLATES)
@given(conversation=conversations)
@settings(max_examples=25)
def test_ids_are_those_of_the_whole_text_cold_and_remembered(
    template: str, kind: str, conversation: Conversation
) -> None:
    renderer, tokenizer = renderer_of(template, kind), tokenizer_of(kind)
    for _ in range(2):
        prompt = renderer.render(conversation, tenant="t")
        assert prompt.token_ids.tolist() == tokenizer.encode(prompt.text).tolist()
        if kind in LOSSLESS and tokenizer_keeps_start(kind, prompt.text):
            assert tokenizer.decode(prompt.token_ids.tolist()) == prompt.text
        check_regions(prompt)


def tokenizer_keeps_start(kind: str, text: str) -> bool:
    """The scheme `first` puts a blank before a text that begins with none."""
    return kind != "first" or text.startswith(("<|", "<s>"))


@pytest.mark.parametrize("template", TEMPLATES)
@given(conversation=conversations, text=st.lists(st.one_of(words, marked), min_size=1).map("".join))
@settings(max_examples=25)
def test_text_that_looks_like_a_border_is_only_text(template: str, conversation: Conversation, text: str) -> None:
    tokenizer, renderer = tokenizer_of("bytes"), renderer_of(template)
    plain = Conversation((Message("user", "."), *conversation.messages), conversation.tools)
    risky = Conversation((Message("user", text), *conversation.messages), conversation.tools)
    prompt = renderer.render(risky)
    special = np.array(sorted(tokenizer.special_ids))
    assert np.isin(prompt.token_ids, special).sum() == np.isin(renderer.render(plain).token_ids, special).sum()
    assert tokenizer.decode(prompt.token_ids.tolist()) == prompt.text
    check_regions(prompt)


def owned(prompt: RenderedPrompt, tokenizer: Tokenizer) -> dict[str, str]:
    found: dict[str, str] = {}
    for region in prompt.regions:
        text = tokenizer.decode(prompt.token_ids[region.start : region.end].tolist())
        found[region.owner] = found.get(region.owner, "") + text
    return found


def tool(name: str, description: str) -> dict[str, object]:
    parameters = {"type": "object", "properties": {"city": {"type": "string", "description": "Where to look."}}}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


CALL = {"id": "call-0001", "type": "function", "function": {"name": "get_weather", "arguments": '{"city":"Paris"}'}}
CHAT = (
    Message("system", "You are a helper of the user."),
    Message("user", "user"),
    Message("assistant", "a"),
    Message("user", " paris? "),
    Message("assistant", None, {"tool_calls": [CALL]}),
    Message("tool", 'say "21"', {"tool_call_id": "call-0001"}),
    Message("user", "user"),
)
TOOLS = (tool("get_weather", "Weather of a city."), tool("search", "Search for pages."))


@pytest.mark.parametrize("template", ["chatml", "trimming", "late-system", "spelled-tools"])
def test_every_text_has_its_owner(template: str) -> None:
    prompt = renderer_of(template).render(Conversation(CHAT, TOOLS))
    found = owned(prompt, tokenizer_of("bytes"))
    for index in (0, 1, 2, 3, 6):
        assert found[f"messages[{index}]"].strip() == str(CHAT[index].content).strip()
    assert "Paris" in found["messages[4]"]
    assert "get_weather" in found["messages[4]"]
    assert 'say "21"' in found["messages[5]"].replace("\\", "")
    for index, name in enumerate(("get_weather", "search")):
        assert name in found[f"tools[{index}]"]
        assert "Where to look." in found[f"tools[{index}]"]
    assert not any(word in found["template"] for word in ("Paris", "helper", "Search", "21"))


def test_each_of_several_parts_has_its_owner_and_what_is_between_is_the_messages() -> None:
    parts = (text_part("first"), text_part("second"))
    found = owned(renderer_of("chatml").render(Conversation((Message("user", parts),))), tokenizer_of("bytes"))
    assert found["messages[0].content[0]"] == "first"
    assert found["messages[0].content[1]"] == "second"
    assert found["messages[0]"] == "\n"


@pytest.mark.parametrize(("text", "owned_text"), [("us", "user"), ("s", "user"), ("er", "user"), ("x", "x")])
def test_token_that_the_template_shares_belongs_to_the_message(text: str, owned_text: str) -> None:
    before, _, behind = "user".partition(text) if text in "user" else ("", "", "")
    source = f"<|im_end|>{before}{{{{ messages[0].content }}}}{behind}<|im_end|>"
    tokenizer = tokenizer_of("bytes")
    assert len(tokenizer.encode("user")) == 1
    prompt = PromptRenderer(ChatTemplate(source, special_tokens={}), tokenizer).render(
        Conversation((Message("user", text),))
    )
    assert owned(prompt, tokenizer)["messages[0]"] == owned_text


@pytest.mark.parametrize("description", ["", "a", "user", "Weather of a city."])
def test_tools_that_are_not_printed_own_nothing(description: str) -> None:
    unseen = Conversation((Message("user", "a user"),), (tool("get_weather", description), tool("f", "")))
    prompt = renderer_of("plain").render(unseen)
    check_regions(prompt)
    assert [region.owner for region in prompt.regions] == ["template", "messages[0]", "template"]


def test_texts_that_are_not_printed_are_not_found_and_cost_no_square() -> None:
    said = "<think>no</think>yes"
    prompt = renderer_of("thinking").render(
        Conversation((Message("user", "hi"), Message("assistant", said), *CHAT[-1:]))
    )
    assert owned(prompt, tokenizer_of("bytes"))["messages[1]"] == "yes"
    many = tuple(Message("assistant", f"<think>{index}</think>") for index in range(2000))
    check_regions(renderer_of("thinking").render(Conversation((*many, Message("user", "x" * 100_000)))))


def test_tools_that_are_printed_once_are_printed_alike_next_time() -> None:
    renderer, chat = renderer_of("trimming"), Conversation(CHAT, TOOLS)
    first, second = renderer.render(chat), renderer.render(chat)
    assert first.text == second.text == renderer.render(Conversation(CHAT, (*TOOLS,))).text
    changed = Conversation(CHAT, (tool("get_weather", "Other words."), TOOLS[1]))
    assert "Other words." in renderer.render(changed).text
