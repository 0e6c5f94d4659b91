"""Rules that operators turn on: what they bring together with their parameters, and what they leave alone."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from gateway.conversation import body_of
from gateway.errors import InvalidRequestError
from gateway.normalize.registry import Choice, RuleSet
from gateway.normalize.rule import Mode
from gateway.normalize.rules import built_in_rules
from tests.gateway.support.chats import Body, assistant, call, calling, canonical, chat, normalize, result, user


def on(name: str, **params: Any) -> RuleSet:
    return built_in_rules().rule_set({name: Choice(Mode.ON, params)})


DIGEST = "sha256:" + "ab" * 32
IMAGE = {"type": "image_url", "image_url": {"url": "https://x.example/1.png?sig=1", "detail": "low"}}


def shown(url: str, **fields: Any) -> Body:
    return chat(user([{"type": "text", "text": "What?"}, {"type": "image_url", "image_url": {"url": url, **fields}}]))


def skills(*entries: str, tag: str = "skills") -> Body:
    return chat(system="Load:\n<{0}>\n{1}\n</{0}>\nAsk.".format(tag, "\n".join(entries)))


SIGNED = {"https://x.example/1.png?sig=1": DIGEST, "https://x.example/1.png?sig=2": DIGEST}
MEET: Mapping[str, tuple[RuleSet, list[Body]]] = {
    "nfc_system": (on("nfc_system"), [chat(system="K\u00f6ln"), chat(system="Ko\u0308ln")]),
    "nbsp_to_space_system": (
        on("nbsp_to_space_system"),
        [chat(system="10 km"), chat(system="10\u00a0km"), chat(system="\u00a0\u202f10\u202fkm\u00a0")],
    ),
    "role_alias": (
        on("role_alias"),
        [chat({"role": role, "content": "S"}, user("Hi"), system=None) for role in ("system", "developer")],
    ),
    "canonical_call_ids": (
        on("canonical_call_ids"),
        [
            chat(user("Hi"), calling(*first), *map(result, first), user("And?"), calling(*second), *map(result, second))
            for first, second in (
                (("a", "b"), ("c",)),
                (("c", "a"), ("b",)),
                (("a", "b"), ("a",)),
                (("q", "call_0"), "r"),
            )
        ],
    ),
    "sort_tagged_lists": (
        on("sort_tagged_lists", tags=["skills"]),
        [skills("- b", "  more of b", "- a"), skills("- a", "- b", "  more of b")],
    ),
    "sort_tagged_lists of lines": (
        on("sort_tagged_lists", tags=["skills"]),
        [skills("b.py", "a.py"), skills("a.py", "b.py")],
    ),
    "sort_tagged_lists of elements": (
        on("sort_tagged_lists", tags=["skills"]),
        [skills("<s>", "b", "</s>", "<s>", "a", "</s>"), skills("<s>", "a", "</s>", "<s>", "b", "</s>")],
    ),
}


@pytest.mark.parametrize(("rules", "bodies"), MEET.values(), ids=MEET)
def test_what_the_rule_is_for_meets_with_it_and_not_without(rules: RuleSet, bodies: list[Body]) -> None:
    assert len({canonical(body, rules) for body in bodies}) == 1
    assert len({canonical(body) for body in bodies}) == len(bodies)


APART: Mapping[str, tuple[RuleSet, list[Body]]] = {
    "composed user text": (on("nfc_system"), [chat(user("K\u00f6ln")), chat(user("Ko\u0308ln"))]),
    "composed fences": (on("nfc_system"), [chat(system="```\n\u00f6\n```"), chat(system="```\no\u0308\n```")]),
    "compatible characters": (on("nfc_system"), [chat(system="x\u00b2"), chat(system="x2")]),
    "spaces of a user": (on("nbsp_to_space_system"), [chat(user("10 km")), chat(user("10\u00a0km"))]),
    "spaces in fences": (on("nbsp_to_space_system"), [chat(system="```\na b\n```"), chat(system="```\na\u00a0b\n```")]),
    "joiners": (on("nbsp_to_space_system"), [chat(system="a\u200cb"), chat(system="ab"), chat(system="a b")]),
    "a later developer message": (
        on("role_alias"),
        [chat(user("Hi"), {"role": role, "content": "Now."}, user("?")) for role in ("system", "developer")],
    ),
    "numbered lists": (on("sort_tagged_lists", tags=["skills"]), [skills("1. a", "2. b"), skills("2. b", "1. a")]),
    "other tags": (
        on("sort_tagged_lists", tags=["skills"]),
        [skills("- a", "- b", tag="steps"), skills("- b", "- a", tag="steps")],
    ),
    "lists without a tag": (
        on("sort_tagged_lists", tags=["skills"]),
        [chat(system="- a\n- b"), chat(system="- b\n- a")],
    ),
    "lists in fences": (
        on("sort_tagged_lists", tags=["skills"]),
        [chat(system=f"```\n<skills>\n{text}\n</skills>\n```") for text in ("- a\n- b", "- b\n- a")],
    ),
    "lists of users": (
        on("sort_tagged_lists", tags=["skills"]),
        [chat(user(f"<skills>\n{text}\n</skills>")) for text in ("a\nb", "b\na")],
    ),
    "lists with empty lines": (
        on("sort_tagged_lists", tags=["skills"]),
        [skills("- a", "", "- b"), skills("- b", "", "- a")],
    ),
    "calls of other tools": (
        on("canonical_call_ids"),
        [chat(user("Hi"), calling("a", name="x")), chat(user("Hi"), calling("a", name="y"))],
    ),
    "images that nobody fetched": (
        on("image_digest"),
        [
            shown("https://x.example/1.png?sig=1"),
            shown("https://x.example/1.png?sig=2"),
            shown("data:image/png;base64,???"),
        ],
    ),
    "images of other bytes": (
        on("image_digest"),
        [shown("data:image/png;base64,iVBORw0KGgoA"), shown("data:image/png;base64,iVBORw0KGgoB")],
    ),
    "images of other detail": (
        on("image_digest", digests=SIGNED),
        [shown(next(iter(SIGNED)), detail="low"), shown(next(iter(SIGNED)))],
    ),
}


@pytest.mark.parametrize(("rules", "bodies"), APART.values(), ids=APART)
def test_what_the_rule_is_not_for_stays_apart(rules: RuleSet, bodies: list[Body]) -> None:
    assert len({canonical(body, rules) for body in bodies}) == len(bodies)


# Ids of calls


@pytest.mark.parametrize(
    ("shape", "ids"),
    [
        ("call_{n}", ["call_0", "call_1"]),
        ("{n:9}", ["000000000", "000000001"]),
        ("f.{name}:{n}", ["f.look:0", "f.look:1"]),
    ],
)
def test_ids_have_the_shape_that_the_template_wants(shape: str, ids: list[str]) -> None:
    body = chat(user("Hi"), calling("x", "y"), result("y", "2"), result("x", "1"))
    messages = body_of(normalize(body, on("canonical_call_ids", shape=shape)).conversation)["messages"]
    assert [entry["id"] for entry in messages[2]["tool_calls"]] == ids
    assert [(entry["tool_call_id"], entry["content"]) for entry in messages[3:]] == [(ids[0], "1"), (ids[1], "2")]


@pytest.mark.parametrize(
    "turns",
    [
        [calling("x", "x"), result("x")],
        [calling("x"), result("x"), result("call_0")],
        [result("call_1"), calling("x", "y"), result("x"), result("y")],
    ],
)
def test_no_id_is_renamed_where_a_pair_is_not_certain(turns: list[Body]) -> None:
    assert "canonical_call_ids" not in normalize(chat(user("Hi"), *turns), on("canonical_call_ids")).fired


def test_a_result_belongs_to_the_latest_call_of_its_id_and_one_without_a_call_keeps_its_own() -> None:
    turns = [calling("x"), result("x"), user("Again."), calling("x"), result("x"), result("lost")]
    messages = body_of(normalize(chat(user("Hi"), *turns), on("canonical_call_ids")).conversation)["messages"]
    assert [entry.get("tool_call_id") for entry in messages if entry["role"] == "tool"] == ["call_0", "call_1", "lost"]


def test_results_follow_the_order_of_the_calls_by_id_alone() -> None:
    body = chat(user("Hi"), assistant(None, tool_calls=[call("x"), call("y", name="price")]), result("y"), result("x"))
    assert [entry["tool_call_id"] for entry in body_of(normalize(body).conversation)["messages"][3:]] == ["x", "y"]


# Images


def test_images_of_the_same_bytes_are_the_same_message_and_their_sources_are_kept() -> None:
    bodies = [body_of(normalize(shown(url), on("image_digest", digests=SIGNED)).conversation) for url in SIGNED]
    assert json.dumps(bodies[0]["messages"]) == json.dumps(bodies[1]["messages"])
    assert bodies[0]["messages"][1]["content"][1]["image_url"] == {"url": DIGEST}
    assert [body["image_sources"] for body in bodies] == [{DIGEST: url} for url in SIGNED]


def test_an_image_in_the_body_is_named_by_its_bytes_whatever_the_spelling_of_its_address() -> None:
    rules = on("image_digest")
    urls = ["data:image/png;base64,iVBORw0KGgo=", "data:image/PNG;charset=x;base64,iVBORw0KGgo="]
    first, second = (body_of(normalize(shown(url), rules).conversation) for url in urls)
    assert first["messages"] == second["messages"]
    assert list(first["image_sources"].values()) == urls[:1]
    plain = chat(user([{"type": "image_url", "image_url": urls[0]}]))
    assert body_of(normalize(plain, rules).conversation)["messages"][1]["content"][0]["image_url"].startswith("sha256:")


# Parameters


@pytest.mark.parametrize(
    ("name", "params", "field"),
    [
        ("nfc_system", {"x": 1}, "params.x"),
        ("role_alias", {"role": "user"}, "params.role"),
        ("canonical_call_ids", {"shape": "call"}, "params.shape"),
        ("canonical_call_ids", {"shape": "{n}{other}"}, "params.shape"),
        ("canonical_call_ids", {"shape": ""}, "params.shape"),
        ("sort_tagged_lists", {}, "params.tags"),
        ("sort_tagged_lists", {"tags": [""]}, "params.tags[0]"),
        ("sort_tagged_lists", {"tags": "x"}, "params.tags"),
        ("image_digest", {"digests": {"u": "md5:1"}}, "params.digests[u]"),
        ("image_digest", {"digests": []}, "params.digests"),
        ("relocate_volatile", {"pattern": ["x"]}, "params.pattern"),
        ("relocate_volatile", {"kinds": ["weather"]}, "params.kinds[0]"),
        ("relocate_volatile", {"tags": [5]}, "params.tags[0]"),
        ("relocate_volatile", {"patterns": ["ok", "(a+)+"]}, "params.patterns[1]"),
    ],
)
def test_a_wrong_parameter_is_refused_by_name(name: str, params: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        on(name, **params)
    assert caught.value.param == field
