"""Tries a grammar in a process of its own that ends when it takes too long or too much, and holds llguidance's limits.

Most hostile grammars end at a limit of llguidance. But intersections of patterns are looked at before any of its limits
counts, in exponential time and memory, and a thread cannot be stopped. So whatever is new is tried here first.

Run as `python -m engine.grammar_trial` with the grammar on standard input; prints what is wrong with it. Loads no torch.
"""

from __future__ import annotations

import resource
import signal
import subprocess
import sys

from llguidance import LLMatcher, LLParserLimits

CPU_SECONDS = 0.8
"""Of a trial. What a trial has passed is compiled again in the worker, in about the same time."""
MEMORY_BYTES = 1 << 30
"""Address space of a trial; it has 100 MB before it begins."""
_TOO_MUCH = "is too complex: trying it took too long or too much memory"


def parser_limits() -> LLParserLimits:
    """Return what a grammar may take, so that the mask of a token takes at most some ten milliseconds of a step.

    A fifth to a half of llguidance's defaults.
    """
    return LLParserLimits(
        initial_lexer_fuel=400_000,
        step_lexer_fuel=50_000,
        step_max_items=10_000,
        max_lexer_states=50_000,
        max_grammar_size=200_000,
        verbose_errors=False,
    )


def try_grammar(grammar: str) -> str | None:
    """Try a grammar in another process, without a vocabulary; return what is wrong with it."""
    command = [sys.executable, "-m", "engine.grammar_trial"]
    trial = subprocess.run(command, input=grammar.encode(), capture_output=True, check=False)  # noqa: S603  (no shell)
    if trial.returncode != 0:
        return _TOO_MUCH
    return trial.stdout.decode() or None


def main() -> int:
    """Try what standard input holds; returns the exit status."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGPROF, signal.SIG_DFL)  # ends the process, wherever it is
    grammar = sys.stdin.buffer.read().decode()
    signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
    is_error, messages = LLMatcher.validate_grammar_with_warnings(grammar, limits=parser_limits())
    sys.stdout.write(messages[0] if is_error else "")
    return 0


if __name__ == "__main__":
    sys.exit(main())
