"""A content part that names a registered document instead of carrying it, as the three kinds of clients write it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway import checks
from gateway.conversation import Part


class DocumentPart(dict[str, Any]):
    """A part as a chat has it, which a gateway that resolves no documents hands on like any other.

    Attributes:
        name: id or name of what is meant.
        field: where the client named it, for errors.
        title: how the client calls it; None: it did not say.
        context: what the client says about it; None: nothing.
    """

    def __init__(
        self,
        name: str,
        field: str,
        *,
        title: str | None = None,
        context: str | None = None,
        part: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(part or {"type": "file", "file": {"file_id": name}})
        self.name = name
        self.field = field
        self.title = title
        self.context = context


def read_chat_file(field: str, part: Mapping[str, Any]) -> Part:
    """Read a chat's part of type `file`; one that carries its content is kept as it came.

    Raises: InvalidRequestError: it names a document by no text.
    """
    file = part.get("file")
    if not isinstance(file, dict) or file.get("file_id") is None or file.get("file_data") is not None:
        return part
    field = f"{field}.file.file_id"
    return DocumentPart(checks.text(field, file["file_id"]), field, part=part)


def read_document_block(field: str, block: Mapping[str, Any]) -> Part:
    """Read a block of Anthropic's of type `document`.

    Raises: InvalidRequestError: it carries its content, names a document by no text, or wants it cited.
    """
    source = checks.mapping(f"{field}.source", block.get("source"))
    if source.get("type") != "file":
        checks.refuse(
            f"{field}.source.type", source.get("type"), "'file': this server takes registered documents alone"
        )
    citations = checks.mapping(f"{field}.citations", block.get("citations") or {})
    if citations.get("enabled"):
        checks.refuse(f"{field}.citations.enabled", citations["enabled"], "false: this server marks no citations")
    file_id = f"{field}.source.file_id"
    return DocumentPart(
        checks.text(file_id, source.get("file_id")),
        file_id,
        title=_text_or_none(f"{field}.title", block.get("title")),
        context=_text_or_none(f"{field}.context", block.get("context")),
    )


def read_input_file(field: str, part: Mapping[str, Any]) -> Part | None:
    """Read a part of type `input_file` of OpenAI's Responses; None: it carries its content or says where it is.

    Raises: InvalidRequestError: it names a document by no text.
    """
    if part.get("file_id") is None or part.get("file_data") is not None or part.get("file_url") is not None:
        return None
    field = f"{field}.file_id"
    return DocumentPart(checks.text(field, part["file_id"]), field)


def _text_or_none(field: str, value: object) -> str | None:
    return None if value is None else checks.text(field, value)
