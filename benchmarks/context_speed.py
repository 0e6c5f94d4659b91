"""What it costs to cut a long chat: `python -m benchmarks.context_speed [--model FOLDER]`.

Each history has about 400 KB of text. A `new` one was never seen; it comes `again` as it was; the `next` request has an
answer and a question more and is not cut; and at a `cut` all that was sent before was seen. Milliseconds of CPU,
medians of several rounds, each of which begins with an empty memory.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.context_texts import Writer
from benchmarks.machine import describe
from gateway.context.editor import ContextEditor
from gateway.context.estimate import TokenCounter
from gateway.context.fitted import Fitted
from gateway.context.policy import ContextPolicy
from gateway.context.rooms import room_of
from gateway.conversation import Conversation, Message
from gateway.normalize.memory import TurnMemory
from gateway.tokenizer import Tokenizer

_NUM_BYTES = 400_000
_MAX_TURNS_TO_CUT = 60
STEPS = ("new", "again", "next", "cut")


def mixes(seed: int, num_bytes: int = _NUM_BYTES) -> Mapping[str, list[Message]]:
    """Write the histories; each ends with a question."""
    writer = Writer(random.Random(seed))
    text = "".join(writer.document("prose", num_bytes))
    chinese = "".join(writer.document("chinese", num_bytes // 3))
    return {
        "agent": [*_rounds(writer, num_bytes // 8000, _agent), _question(writer)],
        "document": [Message("user", f"Read this.\n\n{text[:num_bytes]}\n\nWhat is the most important number in it?")],
        "short": [*_rounds(writer, num_bytes // 80, _short), _question(writer)],
        "chinese": [
            Message("user", f"请看。\n\n{chinese[: num_bytes // 6]}\n\n谁要求大家检查？"),
            *_rounds(writer, 20, lambda writer: _talk(writer, "chinese", num_bytes // 240)),
            _question(writer),
        ],
    }


def _rounds(writer: Writer, number: int, make: Callable[[Writer], list[Message]]) -> list[Message]:
    return [message for _ in range(number) for message in make(writer)]


def _question(writer: Writer) -> Message:
    return Message("user", f"What was said of {writer.any('place')} and of {writer.any('person')}?")


def _agent(writer: Writer) -> list[Message]:
    """Write 8 KB: a question, a call, its result and an answer with code."""
    call = {"id": "call", "type": "function", "function": {"name": "look_up", "arguments": '{"what": "records"}'}}
    return [
        _question(writer),
        Message("assistant", None, {"tool_calls": [call]}),
        Message("tool", "".join(writer.document("table", 4000)), {"tool_call_id": "call"}),
        Message("assistant", "".join(writer.document("prose", 1500) + writer.document("code", 1500))),
    ]


def _short(writer: Writer) -> list[Message]:
    return [Message("user", writer.sentence()[:40]), Message("assistant", writer.sentence()[:40])]


def _talk(writer: Writer, kind: str, num_chars: int) -> list[Message]:
    return [_question(writer), Message("assistant", "".join(writer.document(kind, num_chars)))]


class Round:
    """One client and one editor that remembers nothing yet; the counter has seen other texts."""

    def __init__(self, counter: TokenCounter, window: int) -> None:
        self._editor = ContextEditor(counter, TurnMemory())
        self._room = room_of(window, None)

    def times(self, messages: list[Message], writer: Writer) -> dict[str, float]:
        """Time one history, in milliseconds."""
        times = {}
        times["new"], _ = self._timed(messages)
        times["again"], _ = self._timed(messages)
        for _ in range(_MAX_TURNS_TO_CUT):
            messages = [*messages, Message("assistant", writer.sentence()), _question(writer)]
            took, fitted = self._timed(messages)
            times["cut" if fitted.is_new_cut else "next"] = took
            if set(times) == set(STEPS):
                return times
        return times

    def _timed(self, messages: list[Message]) -> tuple[float, Fitted]:
        conversation = Conversation(tuple(map(_parsed, messages)))
        start = time.process_time()
        fitted = self._editor.edit(conversation, ContextPolicy(), self._room, "bench")
        return (time.process_time() - start) * 1e3, fitted


def _parsed(message: Message) -> Message:
    """Make it as if it came in a body of its own: nothing about the text is known to Python."""
    content: Any = message.content
    return Message(message.role, content if content is None else content.encode().decode(), dict(message.fields))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = Path.home() / ".cache/prefixgate/models/smollm2-135m-instruct"
    parser.add_argument("--model", type=Path, default=default, help="folder with tokenizer.json")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--window", type=int, default=32_768, help="of the model, in tokens")
    parser.add_argument("--bytes", type=int, default=_NUM_BYTES, help="of a history")
    options = parser.parse_args()
    tokenizer = Tokenizer(options.model / "tokenizer.json")
    print(f"# {describe()}; window of {options.window}, medians of {options.rounds}, ms")
    print(f"{'history':12}{'messages':>10}{'tokens':>10}" + "".join(f"{step:>10}" for step in STEPS))
    for name, messages in mixes(0, options.bytes).items():
        rounds = []
        for seed in range(options.rounds):
            counter = TokenCounter(tokenizer.encode_all)
            Round(counter, options.window).times(mixes(1 + seed, options.bytes)[name], Writer(random.Random(0)))
            rounds.append(Round(counter, options.window).times(messages, Writer(random.Random(seed))))
        num_tokens = sum(len(tokenizer.encode(str(message.content or ""))) for message in messages)
        medians = [statistics.median(times.get(step, float("nan")) for times in rounds) for step in STEPS]
        print(f"{name:12}{len(messages):10}{num_tokens:10}" + "".join(f"{median:10.2f}" for median in medians))
    return 0


if __name__ == "__main__":
    sys.exit(main())
