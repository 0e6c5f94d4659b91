"""Twenty schemas whose answers have an end, each with a wish that leads to it."""

from __future__ import annotations

from typing import Any


def record(**properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def text(most: int, **more: Any) -> dict[str, Any]:
    return {"type": "string", "maxLength": most, **more}


def array(items: dict[str, Any], most: int, **more: Any) -> dict[str, Any]:
    return {"type": "array", "items": items, "maxItems": most, **more}


def whole(low: int, high: int) -> dict[str, Any]:
    return {"type": "integer", "minimum": low, "maximum": high}


_REF = {"$ref": "#/$defs/place"}
_LEAF = record(value=whole(0, 9))
_TREE = record(value=whole(0, 9), children=array(record(value=whole(0, 9), children=array(_LEAF, 2)), 2))

SCHEMAS: dict[str, tuple[str, dict[str, Any]]] = {
    "person": ("Invent a person.", record(name=text(30), age=whole(0, 120))),
    "nested": (
        "Where does Ann live?",
        record(person=record(name=text(20), home=record(street=text(30), number=whole(1, 999)))),
    ),
    "array": ("Name some fruits.", record(fruits=array(text(15, minLength=1), 5, minItems=2))),
    "enum": ("How do you like rain?", record(mood={"enum": ["good", "bad", "so-so", 0, None, True]})),
    "optional": (
        "Describe a book.",
        {
            "type": "object",
            "properties": {"title": text(40), "pages": whole(1, 2000), "lent": {"type": "boolean"}},
            "required": ["title"],
            "additionalProperties": False,
        },
    ),
    "any-of": ("Give a name or a number.", {"anyOf": [record(name=text(20)), record(number=whole(0, 99))]}),
    "one-of": (
        "Choose a circle or a square.",
        {
            "oneOf": [
                record(kind={"const": "circle"}, radius=whole(1, 50)),
                record(kind={"const": "square"}, side=whole(1, 50)),
            ]
        },
    ),
    "defs": (
        "From where to where do you travel?",
        {
            **record(start=_REF, end=_REF),
            "$defs": {"place": record(town=text(20), country={"enum": ["FR", "DE", "IT"]})},
        },
    ),
    "pattern": (
        "Give an order number and a plate.",
        record(
            order=text(9, pattern="^[A-Z]{3}-[0-9]{4}$"),
            plate={"type": "string", "pattern": "^[a-z]{1,3} ?[0-9]{1,4}$"},
        ),
    ),
    "whole-numbers": (
        "Give some numbers.",
        record(
            low=whole(-100, -1),
            any=whole(-7, 1234),
            exact={"type": "integer", "minimum": 0, "maximum": 100, "multipleOf": 5},
        ),
    ),
    "decimals": (
        "How warm is it?",
        record(celsius={"type": "number", "minimum": -40, "maximum": 50, "multipleOf": 0.5}),
    ),
    "dates": (
        "When were you there?",
        record(
            day={"type": "string", "format": "date"},
            hour={"type": "string", "pattern": "^([01][0-9]|2[0-3]):[0-5][0-9]$"},
        ),
    ),
    "identifiers": (
        "Give an address of a host.",
        record(id={"type": "string", "format": "uuid"}, ip={"type": "string", "format": "ipv4"}),
    ),
    "tree": ("Draw a tree of numbers.", _TREE),
    "recursion": (
        "Make a list.",
        {
            "$ref": "#/$defs/two",
            "$defs": {
                "two": record(head=whole(0, 9), rest={"anyOf": [{"$ref": "#/$defs/one"}, {"type": "null"}]}),
                "one": record(head=whole(0, 9), rest={"type": "null"}),
            },
        },
    ),
    "unicode": (
        "Translate red.",
        record(**{"größe": whole(0, 9), "色": text(10), 'with "quotes"\\': {"type": "boolean"}}),
    ),
    "map": (
        "Count what is on the table.",
        {
            "type": "object",
            "patternProperties": {"^[a-z]{1,8}$": whole(0, 99)},
            "additionalProperties": False,
            "maxProperties": 3,
            "minProperties": 1,
        },
    ),
    "tuple": (
        "Where is it on the map?",
        {"type": "array", "prefixItems": [whole(-90, 90), whole(-180, 180), text(8)], "items": False, "minItems": 3},
    ),
    "all-of": (
        "Describe an animal.",
        {
            "allOf": [
                {"type": "object", "properties": {"legs": whole(0, 8)}, "required": ["legs"]},
                {"type": "object", "properties": {"name": text(15)}, "required": ["name"]},
            ],
            "additionalProperties": False,
            "type": "object",
            "properties": {"legs": True, "name": True},
        },
    ),
    "nullable": (
        "Rate the film.",
        record(
            stars={"type": ["integer", "null"], "minimum": 1, "maximum": 5},
            tags=array({"enum": ["funny", "sad", "long"]}, 3),
            flags=array({"type": "boolean"}, 4, minItems=4),
        ),
    ),
}
