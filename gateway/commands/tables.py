"""JSON objects as people read them: names and values, and tables of what lists hold.

It takes whatever fields come, so a gateway that tells more is shown in full.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeGuard

_MAX_CELL_CHARS = 64
"""A SHA-256 fits."""
_MAX_INLINE_ENTRIES = 4
_DIGITS = 4


def print_object(fields: Mapping[str, Any]) -> None:
    """Print short values first, aligned, then texts of several lines and long lists, each below its name; nothing is cut."""
    flat = dict(_flat(fields, inline=True))
    long = {name: value for name, value in flat.items() if _is_long(value)}
    short = {name: value for name, value in flat.items() if name not in long}
    width = max(map(len, short), default=0)
    for name, value in short.items():
        print(f"{name:<{width}}  {_one_line(value)}")
    for name, value in long.items():
        print(f"\n{name}:")
        if isinstance(value, str):
            _print_text(value)
        elif _are_texts(value):
            _print_text("\n".join(value))
        else:
            print_table(value)


def print_table(rows: Sequence[Mapping[str, Any]], columns: Iterable[str] | None = None) -> None:
    """Print a row a line, cells cut; `columns` that no row has are left out, and None means all of the rows' fields.

    Fields of objects within rows are columns of their own, `outer.inner`.
    """
    rows = [dict(_flat(row, inline=False)) for row in rows]
    if not rows:
        print("none")
        return
    found = dict.fromkeys(name for row in rows for name in row)
    names = [name for name in found if columns is None] + [name for name in columns or () if name in found]
    lines = [names, *([_cut(_one_line(row.get(name))) for name in names] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        print("  ".join(f"{cell:<{width}}" for cell, width in zip(line, widths, strict=True)).rstrip())


def _print_text(text: str) -> None:
    # As it is, but for what would steer a terminal.
    for line in text.split("\n"):
        print(_printable(line))


def _flat(fields: Mapping[str, Any], *, inline: bool, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Name what lies within objects `outer.inner`; with `inline`, what fits into a line or a table stays whole."""
    for name, value in fields.items():
        if isinstance(value, dict) and value and not (inline and _fits_a_line(value)):
            yield from _flat(value, inline=inline, prefix=f"{prefix}{name}.")
        elif inline and _are_objects(value) and not all(map(_fits_a_row, value)):
            for index, entry in enumerate(value):
                yield from _flat(entry, inline=True, prefix=f"{prefix}{name}[{index}].")
        else:
            yield _printable(prefix + name), value


def _fits_a_line(fields: Mapping[str, Any]) -> bool:
    return not any(isinstance(value, dict | list) or _is_long(value) for value in fields.values())


def _fits_a_row(fields: Mapping[str, Any]) -> bool:
    return all(len(_one_line(value)) <= _MAX_CELL_CHARS for _, value in _flat(fields, inline=False))


def _is_long(value: object) -> bool:
    if isinstance(value, str):
        return "\n" in value
    if not isinstance(value, list) or not value:
        return False
    if _are_texts(value):
        return len(value) > _MAX_INLINE_ENTRIES or any("\n" in entry for entry in value)
    return _are_objects(value)


def _are_objects(value: object) -> TypeGuard[list[dict[str, Any]]]:
    return isinstance(value, list) and all(isinstance(entry, dict) for entry in value)


def _are_texts(value: Sequence[object]) -> bool:
    return all(isinstance(entry, str) for entry in value)


def _one_line(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return str(round(value, _DIGITS))
    if isinstance(value, str):
        return _printable(value)
    if isinstance(value, dict) and not any(isinstance(entry, dict | list) for entry in value.values()):
        return ", ".join(f"{_printable(name)} {_one_line(entry)}" for name, entry in value.items()) or "-"
    if isinstance(value, list) and not any(isinstance(entry, dict | list) for entry in value):
        rest = f", … ({len(value)} in all)" if len(value) > _MAX_INLINE_ENTRIES else ""
        return ", ".join(map(_one_line, value[:_MAX_INLINE_ENTRIES])) + rest or "-"
    return _printable(json.dumps(value, ensure_ascii=False))


def _printable(text: str) -> str:
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def _cut(text: str) -> str:
    return text if len(text) <= _MAX_CELL_CHARS else text[: _MAX_CELL_CHARS - 1] + "…"
