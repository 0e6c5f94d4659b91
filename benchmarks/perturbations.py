"""What clients do to a chat that they send again: pure functions on a request's body, seeded by the request."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

Json = dict[str, Any]


def _unchanged(message: Json) -> Json:
    return message


@dataclass(frozen=True)
class Perturbation:
    """One habit of clients."""

    name: str
    apply: Callable[[Json, random.Random], Json]
    """Changes a copy of a body; the same seed gives the same change."""
    rules: Sequence[str]
    """Those that undo it, all of them needed."""
    opt_in: dict[str, Json]
    """Of those, the ones that an operator has to turn on, with parameters."""
    answer: Callable[[Json], Json] = _unchanged
    """What the engine returned, where the recording shows only what the client made of it."""

    def perturbed(self, body: Json, seed: str) -> Json:
        """Change a copy."""
        return self.apply(copy.deepcopy(body), random.Random(seed))


def _calls(body: Json) -> list[Json]:
    return [call for message in body["messages"] for call in message.get("tool_calls") or ()]


def _arguments_printed_anew(body: Json, _: random.Random) -> Json:
    """As after a language whose objects keep no order: keys sorted, no blanks, other letters escaped."""
    for call in _calls(body):
        try:
            value = json.loads(call["function"]["arguments"])
        except ValueError:
            continue
        call["function"]["arguments"] = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return body


def _reasoning_dropped(body: Json, _: random.Random) -> Json:
    for message in body["messages"]:
        message.pop("reasoning_content", None)
    return body


def _with_reasoning(message: Json) -> Json:
    """Sets that record none get some."""
    last = (message.get("content") or "the tool")[:60]
    return {"reasoning_content": f"The user waits. Next I turn to this: {last}", **message}


def _tools_shuffled(body: Json, rng: random.Random) -> Json:
    rng.shuffle(body["tools"])
    return body


def _header(body: Json, rng: random.Random) -> Json:
    line = f"x-anthropic-billing-header: cc_version=9.9.9.{rng.randrange(4096):03x}; cc_entrypoint=cli; "
    return _system(body, lambda text: f"{line}cch={rng.randrange(2**20):05x};\n{text}")


def _clock(body: Json, rng: random.Random) -> Json:
    """After the first line, as most templates of system texts have it."""
    now = f"2026-11-{rng.randrange(1, 29):02} {rng.randrange(24):02}:{rng.randrange(60):02}:{rng.randrange(60):02}"
    return _system(body, lambda text: text.replace("\n", f"\nCurrent time: {now}\n", 1))


def _line_ends(body: Json, rng: random.Random) -> Json:
    """Half of the requests come from a client that reads its prompt from a file of another system.

    Only up to the first fence: what stands in one is left alone by all rules.
    """

    def change(text: str) -> str:
        before, fence, behind = text.partition("```")
        return before.replace("\n", "\r\n") + fence + behind

    return _system(body, change) if rng.random() < 0.5 else body


def _system(body: Json, change: Callable[[str], str]) -> Json:
    body["messages"][0]["content"] = change(body["messages"][0]["content"])
    return body


def _ids_changed(body: Json, rng: random.Random) -> Json:
    """As by a framework that numbers calls by itself, anew for every request."""
    names = {call["id"]: f"call_{rng.randrange(2**48):012x}" for call in _calls(body)}
    for call in _calls(body):
        call["id"] = names[call["id"]]
    for message in body["messages"]:
        if message.get("tool_call_id") in names:
            message["tool_call_id"] = names[message["tool_call_id"]]
    return body


def _replies_trimmed(body: Json, _: random.Random) -> Json:
    for message in body["messages"]:
        if message["role"] == "assistant" and message["content"]:
            message["content"] = message["content"].rstrip()
    return body


def _with_blank_end(message: Json) -> Json:
    """Models often end with a line end, which recordings have lost already."""
    return {**message, "content": message["content"].rstrip() + "\n\n"} if message["content"] else message


def _empty_forms(body: Json, rng: random.Random) -> Json:
    """Turns that only call tools come with null, with nothing or with an empty text; others with null fields."""
    for message in body["messages"]:
        if message["role"] != "assistant":
            continue
        if not message["content"] and message.get("tool_calls"):
            message["content"] = rng.choice([None, ""])
        message |= rng.choice([{}, {"refusal": None, "audio": None, "annotations": []}])
    return body


def _as_parts(body: Json, rng: random.Random) -> Json:
    for message in body["messages"]:
        if isinstance(message["content"], str) and message["role"] != "tool" and rng.random() < 0.5:
            message["content"] = [{"type": "text", "text": message["content"]}]
    return body


def _markers(body: Json, _: random.Random) -> Json:
    """On the system text and the last two messages of the user, where they wander."""
    marked = [body["messages"][0], *[m for m in body["messages"] if m["role"] == "user"][-2:]]
    for message in marked:
        part = {"type": "text", "text": message["content"], "cache_control": {"type": "ephemeral"}}
        message["content"] = [part]
    return body


def _results_reordered(body: Json, rng: random.Random) -> Json:
    """Results of calls made at once come as they end."""
    messages = body["messages"]
    start = 0
    while start < len(messages):
        end = start
        while end < len(messages) and messages[end]["role"] == "tool":
            end += 1
        run = messages[start:end]
        rng.shuffle(run)
        messages[start:end] = run
        start = end + 1
    return body


CLEAN = Perturbation("clean", lambda body, _: body, (), {})
PERTURBATIONS = (
    CLEAN,
    Perturbation("arguments printed anew", _arguments_printed_anew, ("echo_repair",), {}),
    Perturbation("reasoning dropped", _reasoning_dropped, ("reasoning_restore",), {}, _with_reasoning),
    Perturbation("call ids changed", _ids_changed, ("echo_repair",), {}),
    Perturbation("replies trimmed", _replies_trimmed, ("echo_repair",), {}, _with_blank_end),
    Perturbation("results reordered", _results_reordered, ("order_tool_results_by_call",), {}),
    Perturbation("tools shuffled", _tools_shuffled, ("canonical_tool_order",), {}),
    Perturbation("header line", _header, ("strip_client_header",), {}),
    Perturbation("clock", _clock, ("relocate_volatile",), {"relocate_volatile": {"kinds": ["clock"]}}),
    Perturbation("line ends", _line_ends, ("crlf_to_lf_system",), {}),
    Perturbation("empty forms", _empty_forms, ("one_empty_content_form", "drop_null_message_fields"), {}),
    Perturbation("string or part", _as_parts, ("single_part_to_string",), {}),
    Perturbation("cache markers", _markers, ("strip_cache_markers",), {}),
)
