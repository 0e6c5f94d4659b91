"""Tries a grammar in a process of its own that ends when it takes too long or too much, and holds llguidance's limits.

Most hostile grammars end at a limit of llguidance. But intersections of patterns are looked at before any of its limits
counts, in exponential time and memory, and a thread cannot be stopped. So whatever is new is tried here first.

Run as `python -m engine.grammar_trial` with the grammar on standard input; prints a `Trial` as JSON. Loads no torch.
"""

from __future__ import annotations

import resource
import signal
import subprocess
import sys

import msgspec
from llguidance import LLMatcher, LLParserLimits
from llguidance.gbnf_to_lark import any_to_lark

CPU_SECONDS = 0.8
"""Of a trial. What a trial has passed is compiled again in the worker, in about the same time."""
MEMORY_BYTES = 1 << 30
"""Address space of a trial; it has 100 MB before it begins."""
_TOO_MUCH = "it is too complex: trying it took too long or too much memory"


def parser_limits() -> LLParserLimits:
    """Return what a grammar may take, so that a token, its mask and acceptance together, takes at most some 20 ms.

    The time of items grows with their square: 10,000 took 60 ms, 4,000 take 9, and objects of 500 optional properties need
    2,500. The fuel of a step, more than llguidance's own, is used up at most where a lexer meets a vocabulary for the first
    time: a tame pattern beside a `maxLength` took 22 ms (49,152 tokens), and could not go on with 200,000.
    """
    return LLParserLimits(
        initial_lexer_fuel=400_000,
        step_lexer_fuel=500_000,
        step_max_items=4_000,
        max_lexer_states=50_000,
        max_grammar_size=200_000,
        verbose_errors=False,
    )


class Trial(msgspec.Struct, frozen=True):
    """How it went."""

    grammar: str
    """As llguidance reads it."""
    refusal: str | None = None
    """What is wrong with it."""


def try_grammar(grammar: str) -> Trial:
    """Try a grammar in another process, without a vocabulary.

    Args:
        grammar: llguidance's JSON, its variant of Lark, or the GBNF of llama.cpp.

    Raises: OSError: there can be no other process.
    """
    command = [sys.executable, "-m", "engine.grammar_trial"]
    trial = subprocess.run(command, input=grammar.encode(), capture_output=True, check=False)  # noqa: S603  (no shell)
    if trial.returncode != 0:
        return Trial(grammar, _TOO_MUCH)
    return msgspec.json.decode(trial.stdout, type=Trial)


def main() -> int:
    """Try what standard input holds; returns the exit status."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGPROF, signal.SIG_DFL)  # ends the process, wherever it is
    grammar = sys.stdin.buffer.read().decode()
    signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
    sys.stdout.buffer.write(msgspec.json.encode(_tried(grammar)))
    return 0


def _tried(grammar: str) -> Trial:
    if not grammar.startswith("{"):
        try:
            grammar = any_to_lark(grammar)
        except Exception as error:  # llguidance raises just that
            return Trial(grammar, f"it is neither Lark nor GBNF: {error}")
    is_error, messages = LLMatcher.validate_grammar_with_warnings(grammar, limits=parser_limits())
    return Trial(grammar, messages[0] if is_error else None)


if __name__ == "__main__":
    sys.exit(main())
