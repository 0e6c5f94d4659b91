"""Public traces of prefix reuse, as sequences of block ids.

Both formats are JSON lines. `mooncake` is that of the traces published with Mooncake (FAST 2025): one id a block of 512
tokens, the last one possibly partial. `hash-ids` is `{"hash_ids": [...]}` a line and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import orjson

REQUIRED_FIELDS = {"mooncake": ("timestamp", "input_length", "output_length", "hash_ids"), "hash-ids": ("hash_ids",)}
_ID_BITS = 63


class TraceError(ValueError):
    """A line of a trace is not what its format says; names file, line, what came and what was wanted."""


def read_trace(path: Path, trace_format: str) -> Iterator[list[int]]:
    """Yield the block ids of each request, in order.

    Args:
        path: JSON lines; blank lines are skipped.
        trace_format: a key of `REQUIRED_FIELDS`.

    Raises: TraceError: a bad line; OSError: the file cannot be read.
    """
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                yield _block_ids(line, trace_format, f"{path}:{number}")


def _block_ids(line: bytes, trace_format: str, where: str) -> list[int]:
    try:
        entry = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise TraceError(f"{where}: not JSON: {error}") from error
    if not isinstance(entry, dict):
        raise TraceError(f"{where}: got {line.strip()[:40].decode(errors='replace')}, wanted an object")
    for field in REQUIRED_FIELDS[trace_format]:
        if field not in entry:
            raise TraceError(f"{where}: {field} is missing; --format {trace_format} wants it")
    ids = entry["hash_ids"]
    if not isinstance(ids, list) or not all(_is_id(value) for value in ids):
        raise TraceError(f"{where}: hash_ids: wanted an array of whole numbers of at most {_ID_BITS} bits")
    return ids


def _is_id(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value.bit_length() <= _ID_BITS
