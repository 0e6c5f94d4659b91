"""Registered documents without storage, for tests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from gateway.conversation import Conversation, Message, Part
from gateway.document_parts import DocumentPart
from gateway.normalize.modes import RuleModes
from gateway.normalize.rules import built_in_rules
from gateway.prompts.compiler import PromptCompiler
from gateway.prompts.registered import RegisteredPrompts, RegisteredVersion
from gateway.prompts.versions import Prompt, PromptVersion, Retention
from gateway.rendering import PromptRenderer


def part(name: str, field: str = "messages[0].content[0].file.file_id", **about: str) -> Part:
    return DocumentPart(name, field, **about)


def asking(*parts: Part) -> Message:
    return Message("user", (*parts, {"type": "text", "text": "what does it say?"}))


def registered(
    renderer: PromptRenderer,
    sources: Mapping[str, Mapping[str, Any]],
    *,
    own: Mapping[str, str] | None = None,
    slots: Mapping[str, tuple[str, ...]] | None = None,
) -> RegisteredPrompts:
    """Register prompts under ids that are their names; `own`: name -> the tenant of one that is not public."""
    compiler = PromptCompiler(RuleModes(built_in_rules()), renderer)
    own, slots = own or {}, slots or {}
    versions = []
    for name, source in sources.items():
        compiled = compiler.compile(source, slots.get(name, ()), {})
        prompt = Prompt(f"pmt_{name}", name, own.get(name, "default"), name not in own, 1, 0.0, None)
        tokens = compiled.head.token_ids.astype(np.int32)
        version = PromptVersion(
            prompt.id, 1, "m", source, "", slots.get(name, ()), {}, Retention(), tokens, compiled.head.sha256, 0, 0, 0.0
        )
        versions.append(RegisteredVersion(prompt, version, compiled))
    return RegisteredPrompts(versions)


def text(content: str) -> dict[str, Any]:
    return {"messages": [{"role": "system", "content": content}]}


def conversation(*messages: Message) -> Conversation:
    return Conversation(messages)
