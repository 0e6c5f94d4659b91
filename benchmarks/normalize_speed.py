"""What a long body costs before the engine sees it: `python -m benchmarks.normalize_speed [--model FOLDER]`.

A body of 100 KB, mostly system text and 40 tools, goes through the rules, the template and the tokenizer. `cold` bodies
have a head that was never seen; of `memoized` ones only the last turn is new. Medians of one run, in milliseconds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson

from benchmarks.machine import describe
from gateway.chat_request import parse_chat_request
from gateway.conversation import Conversation
from gateway.model_files import ModelFiles
from gateway.normalize.modes import RuleModes
from gateway.normalize.rule import Context
from gateway.normalize.rules import built_in_rules
from gateway.rendering import PromptRenderer
from gateway.template import ChatTemplate
from gateway.tokenizer import Tokenizer

_TENANT = "bench"
_NUM_TOOLS = 40
_NUM_PARAMETERS = 8
_NUM_SENTENCES = 980
_NUM_TURNS = 8

TEMPLATE = """\
{% if tools %}<|im_start|>system
{{ messages[0].content }}

# Tools
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}<|im_end|>
{% endif %}{% for m in messages %}{% if not (tools and loop.first) %}<|im_start|>{{ m.role }}
{{ m.content }}<|im_end|>
{% endif %}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
"""ChatML with tools in the head: the default model's own template renders none."""


def body(head: int, turn: int) -> bytes:
    """Write a body of about 100 KB; bodies of one head differ in their last turn."""
    sentences = (
        f"Rule {index} of head {head}: answer in plain words and name your source. " for index in range(_NUM_SENTENCES)
    )
    turns = [
        {"role": role, "content": f"{role} {index}: " + "the fox and the dog look at the river. " * 8}
        for index in range(_NUM_TURNS)
        for role in ("user", "assistant")
    ]
    last = {"role": "user", "content": f"Question {turn}: what comes next?"}
    system = {"role": "system", "content": "".join(sentences)}
    return orjson.dumps(
        {"model": "m", "messages": [system, *turns, last], "tools": [_tool(head, i) for i in range(_NUM_TOOLS)]}
    )


def _tool(head: int, index: int) -> dict[str, Any]:
    properties = {
        f"parameter_{number}": {"type": "string", "description": f"What to do with part {number} of it."}
        for number in range(_NUM_PARAMETERS)
    }
    parameters = {"type": "object", "properties": properties, "required": ["parameter_0"]}
    function = {
        "name": f"tool_{index:02d}",
        "description": f"Does the thing {index} of {head}.",
        "parameters": parameters,
    }
    return {"type": "function", "function": function}


def timed(call: Callable[[], Any]) -> tuple[float, Any]:
    """Return milliseconds and the result."""
    start = time.perf_counter()
    result = call()
    return (time.perf_counter() - start) * 1e3, result


class Bench:
    """One gateway's way from a body to tokens, step by step."""

    def __init__(self, folder: Path) -> None:
        files = ModelFiles.from_folder(folder, "m")
        special_tokens = {"bos_token": files.bos_token, "eos_token": files.eos_token}
        self._tokenizer = Tokenizer(files.tokenizer_file)
        self._renderer = PromptRenderer(ChatTemplate(TEMPLATE, special_tokens=special_tokens), self._tokenizer)
        self._rules = RuleModes(built_in_rules()).rule_set(_TENANT, "/v1/chat/completions")

    def steps(self, raw: bytes) -> dict[str, float]:
        """Time one body; `tokenize` is what a rendering takes beside the writing of its text."""
        times = {}
        times["parse"], chat = timed(lambda: parse_chat_request(raw))
        times["normalize"], normalized = timed(lambda: self._rules.normalize(chat.conversation, Context(_TENANT)))
        conversation: Conversation = normalized.conversation
        times["render"], written = timed(lambda: self._renderer.write(conversation))
        times["tokenize"], prompt = timed(lambda: self._renderer.tokenize(written, tenant=_TENANT))
        times["regions"], _ = timed(lambda: prompt.regions)
        times["normalize+render"] = times["normalize"] + times["render"]
        times["tokenize whole"], _ = timed(lambda: self._tokenizer.encode(prompt.text))
        return times


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = Path.home() / ".cache/prefixgate/models/smollm2-135m-instruct"
    parser.add_argument("--model", type=Path, default=default, help="folder with tokenizer.json")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", action="store_true", help="one object on stdout")
    options = parser.parse_args()
    bench = Bench(options.model)
    bench.steps(body(-1, 0))  # what is found out once
    cold = [bench.steps(body(head, 0)) for head in range(options.rounds)]
    memoized = [bench.steps(body(0, turn + 1)) for turn in range(options.rounds)]
    medians = {
        kind: {step: statistics.median(times[step] for times in rounds) for step in rounds[0]}
        for kind, rounds in (("cold", cold), ("memoized", memoized))
    }
    size = len(body(0, 0))
    if options.json:
        print(json.dumps({"machine": describe(), "body_bytes": size, "rounds": options.rounds, "median_ms": medians}))
        return 0
    print(f"# {describe()}; a body of {size / 1e3:.0f} KB, medians of {options.rounds}, ms")
    print(f"{'step':20}{'cold':>10}{'memoized':>10}")
    for step in medians["cold"]:
        print(f"{step:20}{medians['cold'][step]:10.2f}{medians['memoized'][step]:10.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
