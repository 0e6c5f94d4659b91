"""Live traffic that is nearly a registered prompt: what differs, where, and how often. Bounded memory, nothing stored.

Compared are the system head and the tools of a conversation, as they came and in canonical form: what differs only as
it came is repaired by the normalizer, and listed as such.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from gateway.conversation import Conversation, texts_of

_MIN_ALIKE = 0.5
"""Share of the registered text that two texts must have in common, at both ends together, to be the same prompt."""
_MAX_VARIANTS = 32
_MAX_KNOWN = 1024
_SNIPPET_CHARS = 24


@dataclass(frozen=True, slots=True)
class Place:
    """The first difference."""

    region: str
    """`system`, or `tools`, or `tools[k]`."""
    character: int | None
    """Of the system text; None for tools."""
    expected: str
    """The registered prompt from there on, cut."""
    got: str
    """The live text from there on, cut: kept in memory only, and only seen by the operator."""


@dataclass(slots=True)
class Variant:
    """One way in which requests differ."""

    tenant: str
    place: Place
    repaired: bool
    """The normalizer brings it back."""
    count: int = 0
    last_seen: float = 0.0
    """Seconds since 1970."""


@dataclass(frozen=True, slots=True, eq=False)
class WatchedPrompt:
    """A registered prompt that traffic is held against."""

    prompt_id: str
    version: int
    tenant: str | None
    """Whose traffic; None: everybody's."""
    raw: Conversation
    canonical: Conversation


class DriftWatch:
    """Counts variants by prompt."""

    def __init__(self, prompts: Sequence[WatchedPrompt] = ()) -> None:
        self._prompts = tuple(prompts)
        self._variants: dict[tuple[str, int], OrderedDict[tuple[str, str], Variant]] = {}
        self._known: OrderedDict[tuple[str, str], tuple[WatchedPrompt, Variant] | None] = OrderedDict()

    def watch(self, prompts: Sequence[WatchedPrompt]) -> None:
        """Hold traffic against these from now on; counts of versions that stay are kept."""
        self._prompts = tuple(prompts)
        names = {(prompt.prompt_id, prompt.version) for prompt in prompts}
        self._variants = {key: found for key, found in self._variants.items() if key in names}
        self._known.clear()

    def see(self, raw: Conversation, canonical: Conversation, *, tenant: str, now: float) -> None:
        """Take note of one request."""
        if not self._prompts:
            return
        key = (tenant, _digest(raw))
        if key not in self._known:
            self._known[key] = self._find(raw, canonical, tenant, key)
            if len(self._known) > _MAX_KNOWN:
                self._known.popitem(last=False)
        if (found := self._known[key]) is not None:
            prompt, variant = found
            variant.count += 1
            variant.last_seen = now
            self._keep(prompt, key, variant)

    def variants(self, prompt_id: str, version: int) -> list[Variant]:
        """Return what was seen for a version, the most frequent first."""
        found = self._variants.get((prompt_id, version), OrderedDict())
        return sorted(found.values(), key=lambda variant: -variant.count)

    def _find(
        self, raw: Conversation, canonical: Conversation, tenant: str, key: tuple[str, str]
    ) -> tuple[WatchedPrompt, Variant] | None:
        candidates = [prompt for prompt in self._prompts if prompt.tenant in (None, tenant)]
        places = [(prompt, difference(prompt.canonical, canonical)) for prompt in candidates]
        same = next((prompt for prompt, place in places if place is None), None)
        if same is not None:
            place = difference(same.raw, raw) and difference(same.canonical, raw)
            return None if place is None else (same, Variant(tenant, place, repaired=True))
        alike = [(_alike(prompt.canonical, canonical), prompt, place) for prompt, place in places]
        likeness, prompt, place = max(alike, key=lambda entry: entry[0], default=(0.0, None, None))
        if prompt is None or place is None or likeness < _MIN_ALIKE:
            return None
        kept = self._variants.get((prompt.prompt_id, prompt.version), OrderedDict()).get(key)
        return prompt, kept or Variant(tenant, place, repaired=False)

    def _keep(self, prompt: WatchedPrompt, key: tuple[str, str], variant: Variant) -> None:
        kept = self._variants.setdefault((prompt.prompt_id, prompt.version), OrderedDict())
        kept[key] = variant
        kept.move_to_end(key)
        if len(kept) > _MAX_VARIANTS:
            kept.popitem(last=False)


def difference(expected: Conversation, got: Conversation) -> Place | None:
    """Return where the heads of two conversations first differ; None: they are equal."""
    expected_text, got_text = system_text(expected), system_text(got)
    if expected_text != got_text:
        start = _common_start(expected_text, got_text)
        end = start + _SNIPPET_CHARS
        return Place("system", start, expected_text[start:end], got_text[start:end])
    expected_tools, got_tools = ([_dump(tool) for tool in tools.tools] for tools in (expected, got))
    if expected_tools == got_tools:
        return None
    if sorted(expected_tools) == sorted(got_tools):
        names = (" ".join(_name(tool) for tool in tools.tools) for tools in (expected, got))
        return Place("tools", None, *names)
    pairs = zip(expected_tools, got_tools, strict=False)
    index = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(expected_tools), len(got_tools)))
    names = (_name(tools.tools[index]) if index < len(tools.tools) else "" for tools in (expected, got))
    return Place(f"tools[{index}]", None, *names)


def system_text(conversation: Conversation) -> str:
    """Return the text of the system head, its parts joined as rendering joins them."""
    head = conversation.messages[: conversation.num_head_messages]
    return "\n".join(text for message in head for text in texts_of(message.content))


def _alike(expected: Conversation, got: Conversation) -> float:
    """Share of the registered system text that begins and ends the live one; of its tools, where it has no text."""
    text, live = system_text(expected), system_text(got)
    if not text:
        names, live_names = ({_name(tool) for tool in tools.tools} for tools in (expected, got))
        return len(names & live_names) / max(len(names), 1)
    start = _common_start(text, live)
    end = _common_start(text[start:][::-1], live[start:][::-1])
    return (start + end) / len(text)


def _common_start(a: str, b: str) -> int:
    """Length of the common prefix, by bisection: comparing slices is fast, looping over characters is not."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _digest(conversation: Conversation) -> str:
    head = conversation.messages[: conversation.num_head_messages]
    parts = [[message.role, message.content] for message in head]
    return hashlib.sha256(orjson.dumps([parts, list(conversation.tools)])).hexdigest()


def _dump(tool: Mapping[str, Any]) -> bytes:
    return orjson.dumps(tool)


def _name(tool: Mapping[str, Any]) -> str:
    return str(tool["function"]["name"])
