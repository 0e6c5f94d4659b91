"""Images by what they show: the digest of their bytes stands in the conversation, wherever the bytes come from."""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from gateway import checks
from gateway.conversation import Conversation, Message, Part
from gateway.normalize.rule import Apply, Params, Rule, RuleClass, refuse_others

SOURCES_FIELD = "image_sources"
"""Of the body: digest -> the URL under which this request gave the image, for who has to show it to a model."""
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_MAX_DIGESTS = 1024


def image_digest() -> Rule:
    """Name images by the SHA-256 of their bytes, so that a URL that is signed anew is the same image.

    The rule reads and fetches nothing. Parameter `digests`: URL -> `sha256:` and 64 hex digits, from whoever fetched
    the bytes; a `data:` URL is digested by the bytes in it. A URL of which no bytes are known stays, for its text alone
    says nothing about them. The URLs themselves move to the body's `image_sources`.
    """

    def build(params: Params) -> Apply:
        refuse_others(params, ("digests",))
        digests = _digests(params.get("digests", {}))

        def apply(conversation: Conversation, _: object) -> Conversation:
            sources: dict[str, str] = {}

            def digest_of(url: str) -> str | None:
                digest = digests.get(url) or _data_digest(url)
                if digest is not None:
                    sources.setdefault(digest, url)
                return digest

            messages = tuple(_message(message, digest_of) for message in conversation.messages)
            if not sources:
                return conversation
            known = conversation.fields.get(SOURCES_FIELD)
            fields = {**conversation.fields, SOURCES_FIELD: {**(known if isinstance(known, dict) else {}), **sources}}
            return replace(conversation, messages=messages, fields=fields)

        return apply

    return Rule("image_digest", 1, RuleClass.OPT_IN, build)


def _digests(value: Any) -> Mapping[str, str]:
    digests = checks.mapping("params.digests", value)
    if len(digests) > _MAX_DIGESTS:
        checks.refuse("params.digests", f"{len(digests)} entries", f"at most {_MAX_DIGESTS}")
    for url, digest in digests.items():
        if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
            checks.refuse(f"params.digests[{url[:64]}]", digest, "sha256: and 64 hexadecimal digits in lower case")
    return digests


def _message(message: Message, digest_of: Callable[[str], str | None]) -> Message:
    if not isinstance(message.content, tuple):
        return message
    parts = tuple(_part(part, digest_of) for part in message.content)
    if all(new is old for new, old in zip(parts, message.content, strict=True)):
        return message
    return replace(message, content=parts)


def _part(part: Part, digest_of: Callable[[str], str | None]) -> Part:
    image = part.get("image_url") if part["type"] == "image_url" else None
    url = image.get("url") if isinstance(image, dict) else image
    digest = digest_of(url) if isinstance(url, str) else None
    if digest is None:
        return part
    return {**part, "image_url": {**image, "url": digest} if isinstance(image, dict) else digest}


def _data_digest(url: str) -> str | None:
    """Digest the bytes of a `data:` URL in base64; None: it is none."""
    head, comma, data = url.partition(",")
    if not comma or not head.startswith("data:") or not head.endswith(";base64"):
        return None
    try:
        content = base64.b64decode(data, validate=True)
    except binascii.Error:
        return None
    return f"sha256:{hashlib.sha256(content).hexdigest()}"
