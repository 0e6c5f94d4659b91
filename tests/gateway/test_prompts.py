"""Registered prompts without storage: slots, heads, matching, drift."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.conversation import Conversation, Message, text_part
from gateway.errors import InvalidRequestError
from gateway.model_files import ModelFiles
from gateway.normalize.rules import built_in_rules
from gateway.prompts.drift import DriftWatch, WatchedPrompt, difference
from gateway.prompts.head import prompt_head
from gateway.prompts.matching import HeadIndex, RegisteredHead
from gateway.prompts.slots import check_slots, fill
from gateway.rendering import PromptRenderer
from gateway.template import ChatTemplate
from gateway.tokenizer import Tokenizer

SUPPORT = "You work for the shop. Be kind, be brief. Never promise a refund before a person has looked at it."
texts = st.text(st.sampled_from("ab {}x"), max_size=12)


def chat(system: str, *turns: Message, tools: tuple[str, ...] = ()) -> Conversation:
    described = tuple({"type": "function", "function": {"name": name, "description": "of use"}} for name in tools)
    return Conversation((Message("system", system), *turns), described)


@pytest.fixture(scope="module")
def renderer(model_files: ModelFiles, tokenizer: Tokenizer) -> PromptRenderer:
    special = {"bos_token": model_files.bos_token, "eos_token": model_files.eos_token}
    return PromptRenderer(ChatTemplate(model_files.chat_template, special_tokens=special), tokenizer)


# Slots


@given(texts, texts)
def test_values_of_slots_stand_where_their_marks_stood_and_are_not_read_again(one: str, two: str) -> None:
    filled = fill(chat("a{{x}}b{{y}}c{{x}}"), ["x", "y"], {"x": one, "y": two})
    assert filled.messages[0].content == f"a{one}b{two}c{one}"


def test_a_value_that_looks_like_a_slot_is_a_value() -> None:
    assert fill(chat("{{x}}{{y}}"), ["x", "y"], {"x": "{{y}}", "y": "1"}).messages[0].content == "{{y}}1"
    assert fill(chat("{{y}}{{x}}"), ["x", "y"], {"x": "{{y}}", "y": "{{x}}"}).messages[0].content == "{{x}}{{y}}"


def test_slots_are_filled_in_parts_and_left_alone_elsewhere() -> None:
    parts = (text_part("{{x}}"), {"type": "image_url", "image_url": {"url": "{{x}}"}}, text_part("{{other}}"))
    filled = fill(Conversation((Message("system", parts), Message("assistant", None))), ["x"], {"x": "1"})
    assert [message.content for message in filled.messages] == [(text_part("1"), *parts[1:]), None]


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({}, "prompt.variables.day: got nothing, wanted a string"),
        ({"day": 3}, "prompt.variables.day: got 3, wanted a string"),
        ({"day": "3", "night": "4"}, "prompt.variables.night: got '4', wanted none of this name"),
    ],
)
def test_wrong_variables_are_named(variables: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        fill(chat("{{day}}"), ["day"], variables)


def test_slot_that_does_not_occur_is_refused() -> None:
    check_slots(chat("It is {{day}}."), ["day"])
    with pytest.raises(
        InvalidRequestError, match=r"slots\[1\]: got 'hour', wanted a name that occurs in the text"
    ) as caught:
        check_slots(chat("It is {{day}}, {hour}."), ["day", "hour"])
    assert caught.value.param == "slots[1]"


# Heads


@pytest.mark.parametrize("user", ["a", "7 ", "", "hello", " ", "\n", "<"])
def test_every_request_with_the_prompt_begins_with_its_head(user: str, renderer: PromptRenderer) -> None:
    head = prompt_head(chat(SUPPORT), [], renderer)
    tokens = renderer.token_ids(chat(SUPPORT, Message("user", user)))
    np.testing.assert_array_equal(tokens[: len(head.token_ids)], head.token_ids)
    whole = renderer.token_ids(chat(SUPPORT, Message("user", "a")))
    assert len(whole) - 12 < len(head.token_ids) < len(whole)


def test_head_ends_where_the_first_slot_begins(renderer: PromptRenderer) -> None:
    plain = prompt_head(chat(SUPPORT), [], renderer)
    early = prompt_head(chat("{{day}} " + SUPPORT), ["day"], renderer)
    late = prompt_head(chat(SUPPORT + " {{day}}"), ["day"], renderer)
    assert len(early.token_ids) < len(late.token_ids) < len(plain.token_ids)
    assert early.sha256 != late.sha256


def test_head_of_a_prompt_with_turns_ends_behind_them(renderer: PromptRenderer) -> None:
    shots = (Message("user", "hi"), Message("assistant", "hello"))
    assert len(prompt_head(chat(SUPPORT, *shots), [], renderer).token_ids) > len(
        prompt_head(chat(SUPPORT), [], renderer).token_ids
    )


# Matching


def registered(prompt: str, tokens: list[int], tenant: str | None = None) -> RegisteredHead:
    return RegisteredHead(prompt, 1, tenant, np.array(tokens, dtype=np.int32))


@given(st.lists(st.tuples(st.sampled_from([None, "a", "b"]), st.lists(st.integers(0, 1), min_size=8, max_size=12))))
def test_match_is_the_longest_of_those_that_the_tenant_may_use(heads: list[tuple[str | None, list[int]]]) -> None:
    index = HeadIndex(registered(str(i), tokens, tenant) for i, (tenant, tokens) in enumerate(heads))
    for _, tokens in heads:
        prompt = np.array([*tokens, 1, 0, 1], dtype=np.int32)
        fitting = [(len(own), tenant) for tenant, own in heads if tenant != "b" and prompt[: len(own)].tolist() == own]
        found = index.match(prompt, "a")
        assert (len(found.token_ids) if found else 0) == max((length for length, _ in fitting), default=0)
        public = max((length for length, tenant in fitting if tenant is None), default=0)
        assert index.num_public_tokens(prompt) == public


def test_short_prompts_and_short_heads_match_nothing() -> None:
    index = HeadIndex([registered("short", [1, 2, 3]), registered("long", list(range(20)))])
    assert index.match(np.arange(1, 4, dtype=np.int32), "a") is None
    assert index.match(np.arange(19, dtype=np.int32), "a") is None


# Drift


def watch_of(*prompts: Conversation, tenant: str | None = None) -> DriftWatch:
    rules = built_in_rules().rule_set()
    return DriftWatch(
        [
            WatchedPrompt(f"p{index}", 3, tenant, prompt, rules.normalize(prompt).conversation)
            for index, prompt in enumerate(prompts)
        ]
    )


def see(watch: DriftWatch, conversation: Conversation, tenant: str = "t", times: int = 1) -> None:
    for now in range(times):
        watch.see(
            conversation,
            built_in_rules().rule_set().normalize(conversation).conversation,
            tenant=tenant,
            now=float(now),
        )


def test_variants_are_listed_with_place_and_count_and_the_repaired_one_as_repaired() -> None:
    registered = chat(SUPPORT, tools=("look_up", "order"))
    watch = watch_of(registered, chat("Something else altogether, for the people of the night shift."))
    user = Message("user", "hi")
    edited = SUPPORT.replace("be brief", "be short")
    see(watch, chat(SUPPORT, user, tools=("look_up", "order")), times=5)
    see(watch, chat(SUPPORT + " ", user, tools=("look_up", "order")), times=4)
    see(watch, chat(edited, user, tools=("look_up", "order")), times=3)
    see(watch, chat(SUPPORT, user, tools=("order", "look_up")), times=2)
    trailing, sentence, order = watch.variants("p0", 3)
    assert (trailing.count, trailing.repaired, trailing.place.character) == (4, True, len(SUPPORT))
    assert (sentence.count, sentence.repaired, sentence.place.character) == (3, False, edited.index("short"))
    assert sentence.place.expected.startswith("brief")
    assert sentence.place.got.startswith("short")
    assert (order.count, order.repaired, order.place.region) == (2, True, "tools")
    assert (order.place.expected, order.place.got) == ("look_up order", "order look_up")
    assert sentence.last_seen == 2.0
    assert watch.variants("p1", 3) == []


def test_traffic_that_is_another_prompt_or_of_another_tenant_is_no_drift() -> None:
    watch = watch_of(chat(SUPPORT), tenant="t")
    see(watch, chat("Translate what follows into the language of the reader, line by line."))
    see(watch, chat(SUPPORT + " More."), tenant="other")
    assert watch.variants("p0", 3) == []
    see(watch, chat(SUPPORT + " More."))
    assert [variant.place.character for variant in watch.variants("p0", 3)] == [len(SUPPORT)]


def test_tools_alone_are_a_prompt_too() -> None:
    watch = watch_of(chat("", tools=("a", "b", "c")))
    changed = chat("", tools=("a", "b", "c"))
    description = {"name": "b", "description": "changed"}
    see(
        watch,
        replace(changed, tools=(changed.tools[0], {"type": "function", "function": description}, changed.tools[2])),
    )
    assert [variant.place.region for variant in watch.variants("p0", 3)] == ["tools[1]"]


def test_memory_is_bounded_and_frequent_variants_stay() -> None:
    watch = watch_of(chat(SUPPORT))
    for number in range(3000):
        see(watch, chat(f"{SUPPORT} {number}"))
        if number % 10 == 0:
            see(watch, chat(f"{SUPPORT} often"))
    variants = watch.variants("p0", 3)
    assert len(variants) <= 32
    assert variants[0].count == 300


def test_new_versions_forget_and_old_ones_keep_their_counts() -> None:
    watch = watch_of(chat(SUPPORT))
    see(watch, chat(SUPPORT + " More."))
    kept = WatchedPrompt("p0", 3, None, chat(SUPPORT), chat(SUPPORT))
    watch.watch([kept])
    see(watch, chat(SUPPORT + " More."))
    assert [variant.count for variant in watch.variants("p0", 3)] == [2]
    watch.watch([replace(kept, version=4)])
    assert watch.variants("p0", 3) == []


@given(texts, texts)
def test_difference_is_the_first_differing_character(a: str, b: str) -> None:
    place = difference(chat(a), chat(b))
    if a == b:
        assert place is None
    else:
        assert place is not None
        assert place.character == next(
            (i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b))
        )
