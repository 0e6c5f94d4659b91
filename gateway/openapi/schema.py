"""Short ways to write JSON Schema."""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]

TEXT: Schema = {"type": "string"}
FLAG: Schema = {"type": "boolean"}
COUNT: Schema = {"type": "integer", "minimum": 0}
OBJECT: Schema = {"type": "object"}
TIME: Schema = {"type": "string", "format": "date-time"}


def whole(low: int, high: int | None = None) -> Schema:
    """An integer in bounds, both included."""
    return {"type": "integer", "minimum": low} | ({} if high is None else {"maximum": high})


def number(low: float, high: float) -> Schema:
    """A number in bounds, both included."""
    return {"type": "number", "minimum": low, "maximum": high}


def one_of(*values: str) -> Schema:
    """One of these words."""
    return {"type": "string", "enum": list(values)}


def array(items: Schema, *, least: int = 0, most: int | None = None) -> Schema:
    """An array."""
    bounds = ({"minItems": least} if least else {}) | ({} if most is None else {"maxItems": most})
    return {"type": "array", "items": items, **bounds}


def any_of(*schemas: Schema) -> Schema:
    """Whatever fits one of them."""
    return {"anyOf": list(schemas)}


def nullable(schema: Schema) -> Schema:
    """The same, or null."""
    return any_of(schema, {"type": "null"})


def ref(name: str) -> Schema:
    """A schema of the components."""
    return {"$ref": f"#/components/schemas/{name}"}


def answer(**fields: Schema) -> Schema:
    """An object that always has these fields, and may have more in a later version."""
    return {"type": "object", "required": list(fields), "properties": fields}


def body(required: tuple[str, ...], **fields: Schema) -> Schema:
    """An object that a client sends: a null field counts as absent, an unknown one is ignored."""
    properties = {name: schema if name in required else nullable(schema) for name, schema in fields.items()}
    return {"type": "object", "required": list(required), "properties": properties}
