"""Chat bodies as clients write them, in all their disorder, and what is done with them in tests of the normalizer."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from hypothesis import strategies as st

from gateway.chat_request import conversation_of
from gateway.conversation import Conversation, body_of
from gateway.normalize.memory import TurnMemory
from gateway.normalize.recollection import Recollection
from gateway.normalize.registry import Choice, Normalized, RuleSet
from gateway.normalize.rule import Context, Mode
from gateway.normalize.rules import built_in_rules

Body = dict[str, Any]

PARAMS: Mapping[str, Mapping[str, Any]] = {
    "sort_tagged_lists": {"tags": ["set"]},
    "relocate_volatile": {"tags": ["live"], "kinds": ["clock"], "patterns": [r"ticket \d+"]},
    "canonical_call_ids": {"shape": "call_{n}"},
}
"""For rules that do nothing without."""


def rule_set(*on: str, off: Sequence[str] = ()) -> RuleSet:
    """The defaults, some more rules on with parameters, some off."""
    choices = {name: Choice(Mode.ON, PARAMS.get(name, {})) for name in on}
    return built_in_rules().rule_set({**choices, **dict.fromkeys(off, Choice(Mode.OFF))})


def every_rule() -> RuleSet:
    """All rules on."""
    return rule_set(*(rule.name for rule in built_in_rules().rules))


def normalize(body: Body, rules: RuleSet | None = None, memory: TurnMemory | None = None) -> Normalized:
    """Normalize a body for one tenant; with a memory, what is remembered lasts from call to call."""
    context = Context("t", None if memory is None else Recollection(memory, "t"))
    return (rules or rule_set()).normalize(conversation_of(body), context)


def printed(conversation: Conversation) -> str:
    """As it is forwarded: the order of keys counts."""
    return json.dumps(body_of(conversation), ensure_ascii=False)


def canonical(body: Body, rules: RuleSet | None = None) -> str:
    """The printed canonical form."""
    return printed(normalize(body, rules).conversation)


def chat(*turns: Body, system: Any = "Be kind.", **fields: Any) -> Body:
    """A body with a system text; None: without."""
    head = [] if system is None else [{"role": "system", "content": system}]
    return {"model": "m", "messages": [*head, *(turns or [user("Hello")])], **fields}


def user(content: Any, **fields: Any) -> Body:
    """A user's turn."""
    return {"role": "user", "content": content, **fields}


def assistant(content: Any, **fields: Any) -> Body:
    """An assistant's turn."""
    return {"role": "assistant", "content": content, **fields}


def calling(*ids: str, content: Any = None, name: str = "look") -> Body:
    """An assistant's turn that calls tools."""
    return assistant(content, tool_calls=[call(call_id, name) for call_id in ids])


def call(call_id: str, name: str = "look", arguments: str = '{"at": 5.0}') -> Body:
    """A tool call."""
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def result(call_id: str, content: Any = "4") -> Body:
    """A tool's result."""
    return {"role": "tool", "tool_call_id": call_id, "content": content}


def tool(name: str = "look", *, description: Any = "Looks.", parameters: Any = None, **fields: Any) -> Body:
    """A tool; further fields are the function's."""
    if parameters is None:
        parameters = {"type": "object", "properties": {"at": {"type": "integer"}}, "required": ["at"]}
    function = {"name": name, "description": description, "parameters": parameters, **fields}
    return {"type": "function", "function": function}


# Strategies

HEADER = "x-anthropic-billing-header: cc_version=1.2.{}; cc_entrypoint=cli; cch={};"
_pieces = st.sampled_from(
    [
        *("Be kind.", " ", "\n", "\r\n", "\r", "\t", "\ufeff", "\u00a0", "a\u0308", "\u1fef\u1fef\u1fef", "\u037e"),
        *(
            "```",
            "~~~",
            "\n```\n",
            "- b",
            "- a",
            "<set>\n",
            "\n</set>",
            "<live>x",
            "</live>",
            "[see value-1]",
            "\u200b",
        ),
        *("2031-05-06 07:08:09", "ticket 7", "0", HEADER.format(1, "ab"), HEADER.format(2, "cd") + "\n"),
    ]
)
texts = st.lists(_pieces, max_size=7).map("".join)
_marker = st.sampled_from([{}, {}, {"cache_control": {"type": "ephemeral"}}, {"cache_control": None}])
_text_parts = st.builds(lambda text, extra: {"type": "text", "text": text, **extra}, texts, _marker)
_images = st.sampled_from(["https://x.example/1.png", "data:image/png;base64,iVBORw0KGgo="]).map(
    lambda url: {"type": "image_url", "image_url": {"url": url}}
)


def _contents(parts: st.SearchStrategy[Body]) -> st.SearchStrategy[Any]:
    return texts | st.lists(parts, min_size=1, max_size=3)


_says_nothing = st.sampled_from(
    [{}, {}, {"refusal": None, "annotations": []}, {"tool_calls": []}, {"x_own": None}, {"name": None, "x_own": [1]}]
)
_heads = st.lists(
    st.builds(
        lambda role, content, extra: {"role": role, "content": content, **extra},
        st.sampled_from(["system", "developer"]),
        _contents(_text_parts),
        _marker,
    ),
    max_size=2,
)
_ids = st.sampled_from(["a", "b", "call_0", "call_1", "call_2"])
_turns = st.one_of(
    st.builds(user, _contents(_text_parts | _images)),
    st.builds(lambda content, extra: assistant(content, **extra), st.none() | _contents(_text_parts), _says_nothing),
    st.builds(
        lambda ids, content: calling(*ids, content=content),
        st.lists(_ids, min_size=1, max_size=3),
        st.sampled_from([None, "", [], "Let me look."]),
    ),
    st.builds(result, _ids, texts),
    st.builds(lambda text: {"role": "system", "content": text}, texts),
)
_values = st.sampled_from([None, 5, 5.0, "5", True, ["b", "a"], {"type": "b", "a": None}])
_schemas = st.recursive(
    st.fixed_dictionaries({}, optional={"type": st.sampled_from(["string", ["string", "null"]]), "enum": _values}),
    lambda inner: st.fixed_dictionaries(
        {},
        optional={
            "type": st.just("object"),
            "properties": st.dictionaries(st.sampled_from(["type", "b", "a", "required"]), inner, max_size=3),
            "required": st.lists(st.sampled_from("cab"), max_size=3),
            "description": texts,
            "default": _values,
            "x-own": _values,
            "anyOf": st.lists(inner, max_size=2),
            "items": inner,
        },
    ),
    max_leaves=5,
)


@st.composite
def _disordered(draw: st.DrawFn, objects: st.SearchStrategy[Body]) -> Body:
    value = draw(objects)
    names = draw(st.permutations(list(value)))
    return {name: value[name] for name in names}


_functions = _disordered(
    st.fixed_dictionaries(
        {"name": st.sampled_from("abc")},
        optional={
            "description": texts | st.none(),
            "parameters": _schemas,
            "strict": st.sampled_from([None, True, False]),
            "x_own": _values,
        },
    )
)
_tools = _disordered(
    st.fixed_dictionaries(
        {"type": st.just("function"), "function": _functions},
        optional={"cache_control": st.none(), "defer_loading": st.none(), "x_own": _values},
    )
)
_fields = st.fixed_dictionaries(
    {"model": st.just("m")},
    optional={
        "cache_salt": st.just("s"),
        "functions": st.just([]),
        "x_own": _values,
        "chat_template_kwargs": st.sampled_from([{"b": 1, "a": None}, {"cache_control": 1}]),
        "response_format": _schemas.map(lambda schema: {"type": "json_schema", "json_schema": {"schema": schema}}),
    },
)
bodies: st.SearchStrategy[Body] = st.builds(
    lambda head, turns, tools, fields: {**fields, "messages": head + turns, "tools": tools},
    _heads,
    st.lists(_turns, min_size=1, max_size=5),
    st.lists(_tools, max_size=3),
    _fields,
)
