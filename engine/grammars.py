"""What answers must match: grammars are compiled beside the engine's loop, and tell token by token what may come next.

Knows the vocabulary and no logits. Loads no torch. A grammar is JSON or Lark text in llguidance's form.

Source: llguidance, https://github.com/guidance-ai/llguidance, an Earley parser over a lexer of derivatives.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from llguidance import LLMatcher, LLTokenizer

from engine.grammar_errors import plain_message
from engine.grammar_trial import parser_limits, try_grammar

MAX_CACHED = 64
"""Compiled grammars that are kept. Agents send the same few again and again."""
MAX_QUEUED = 64
"""New grammars of one tenant that wait for a compiler."""
NUM_COMPILERS = 2
"""Threads, so that one hostile grammar does not hold up all others. The compiler lets go of Python's lock."""


@dataclass(frozen=True, slots=True)
class GrammarFailure:
    """Why there is no such grammar."""

    message: str
    """What follows the name of the field."""
    is_retryable: bool = False
    """The same one may do later."""


@dataclass(slots=True)
class CompiledGrammar:
    """What all answers to one grammar share."""

    matcher: LLMatcher
    """At the start. Copies share its lexer, which learns as they go on, and whose size is limited."""
    has_failed: bool = False
    """An answer ran into a limit: the next one needs a lexer of its own."""


class Grammar:
    """One answer's place in its grammar."""

    def __init__(self, compiled: CompiledGrammar, matcher: LLMatcher) -> None:
        self._compiled = compiled
        self._matcher = matcher

    def fork(self) -> Grammar:
        """Return another one at the same place."""
        return Grammar(self._compiled, self._matcher.deep_copy())

    def fill_mask(self, mask: npt.NDArray[np.uint8]) -> None:
        """Set the bits of the tokens that may come next, and clear all others.

        Where there are none any more, or the grammar has failed, these are the tokens that end an answer.

        Args:
            mask: [`mask_bytes(vocab_size)`], contiguous; token i is bit i % 8 of byte i // 8.
        """
        self._matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)

    def accept(self, token_id: int) -> str | None:
        """Enter a token; return why it, or the mask that it was chosen by, cannot be."""
        if self._matcher.consume_token(token_id) and not self._matcher.is_error():  # failed ones take an end as well
            return None
        self._compiled.has_failed = True
        return f"the answer cannot go on: {plain_message(self._matcher.get_error())}"


_Outcome: TypeAlias = CompiledGrammar | GrammarFailure


class Grammars:
    """The grammars of one vocabulary. All but the compiling itself belongs to the engine's loop."""

    def __init__(self, tokenizer: LLTokenizer) -> None:
        self._tokenizer = tokenizer
        self._compilers = ThreadPoolExecutor(NUM_COMPILERS, thread_name_prefix="grammar")
        self._outcomes: OrderedDict[str, _Outcome] = OrderedDict()  # least recently used first
        self._queues: OrderedDict[str, deque[str]] = OrderedDict()  # by tenant: they take turns
        self._compiling: dict[str, Future[_Outcome]] = {}
        self._waiting: dict[str, str] = {}  # request id -> grammar

    @property
    def num_waiting(self) -> int:
        """Requests whose grammar is being compiled."""
        return len(self._waiting)

    @property
    def has_ready(self) -> bool:
        """True where `take_ready` has something to give."""
        return any(future.done() for future in self._compiling.values())

    def begin(self, request_id: str, grammar: str, *, tenant: str = "") -> Grammar | GrammarFailure | None:
        """Return a grammar that is known; None: `take_ready` will give it to this request."""
        known = self._outcomes.get(grammar)
        if known is not None and not (isinstance(known, CompiledGrammar) and known.has_failed):
            self._outcomes.move_to_end(grammar)
            return _at_start(known)
        if grammar not in self._compiling and grammar not in self._waiting.values():
            queue = self._queues.setdefault(tenant, deque())
            if len(queue) >= MAX_QUEUED:
                return GrammarFailure(f"{MAX_QUEUED} other new ones wait to be compiled; try again", is_retryable=True)
            queue.append(grammar)
        self._waiting[request_id] = grammar
        self._compile_next()
        return None

    def cancel(self, request_id: str) -> None:
        """A request is gone; what is being compiled for it already is kept all the same."""
        self._waiting.pop(request_id, None)

    def take_ready(self) -> dict[str, Grammar | GrammarFailure]:
        """Return what was compiled since the last call, by request."""
        done = {grammar: future.result() for grammar, future in self._compiling.items() if future.done()}
        for grammar, outcome in done.items():
            del self._compiling[grammar]
            if isinstance(outcome, CompiledGrammar) or not outcome.is_retryable:
                self._outcomes[grammar] = outcome
        while len(self._outcomes) > MAX_CACHED:
            self._outcomes.popitem(last=False)
        self._compile_next()
        ready = {request_id: grammar for request_id, grammar in self._waiting.items() if grammar in done}
        for request_id in ready:
            del self._waiting[request_id]
        return {request_id: _at_start(done[grammar]) for request_id, grammar in ready.items()}

    def close(self) -> None:
        """End the compilers."""
        self._compilers.shutdown(cancel_futures=True)

    def _compile_next(self) -> None:
        """Keep the compilers busy, with a grammar of each tenant in turn."""
        while self._queues and len(self._compiling) < NUM_COMPILERS:
            tenant, queue = self._queues.popitem(last=False)
            grammar = queue.popleft()
            if queue:
                self._queues[tenant] = queue
            if grammar in self._waiting.values():  # somebody is still there
                self._compiling[grammar] = self._compilers.submit(self._compile, grammar)

    def _compile(self, grammar: str) -> _Outcome:
        try:
            trial = try_grammar(grammar)
        except OSError as error:
            return GrammarFailure(f"it could not be tried: {error}", is_retryable=True)
        if trial.refusal is not None:
            return GrammarFailure(trial.refusal)
        matcher = LLMatcher(self._tokenizer, trial.grammar, log_level=0, limits=parser_limits())
        matcher.compute_bitmask()  # the first is the dearest, and tells whether there is any answer at all
        if matcher.is_error():
            return GrammarFailure(plain_message(matcher.get_error()))
        return CompiledGrammar(matcher)


def load_grammars(folder: Path, *, vocab_size: int, eos_token_ids: frozenset[int]) -> Grammars | None:
    """Read the vocabulary of a model; None where it has none that llguidance can read.

    Args:
        folder: holds tokenizer.json.
        vocab_size: of the logits, which may be more than the tokenizer has.
        eos_token_ids: tokens that end an answer.
    """
    path = folder / "tokenizer.json"
    if not path.is_file() or not eos_token_ids:
        return None
    try:
        text = path.read_text(encoding="utf-8")
        return Grammars(LLTokenizer(text, n_vocab=vocab_size, eos_token=sorted(eos_token_ids)))
    except ValueError:
        return None


def mask_bytes(vocab_size: int) -> int:
    """Return the size of a mask: whole words of 32 bits."""
    return -(-vocab_size // 32) * 4


def _at_start(outcome: _Outcome) -> Grammar | GrammarFailure:
    return outcome if isinstance(outcome, GrammarFailure) else Grammar(outcome, outcome.matcher.deep_copy())
