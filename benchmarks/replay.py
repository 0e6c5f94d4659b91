"""How much of perturbed chats is reused: without rules, with them, and as audit mode foretells it.

    python -m benchmarks.replay FOLDER

Plays recorded chats (`benchmarks.transcripts`) turn by turn through the gateway's rules, renderer and tokenizer and the
prefix cache's own code; several at a time take turns. What the recording shows as answer counts as what the engine
returned. Each row is one habit of clients (`benchmarks.perturbations`); *maximum* is the same chats unperturbed, without
rules. The pool has no limit unless `--num-blocks` sets one.
"""

from __future__ import annotations

import argparse
import functools
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.machine import describe
from benchmarks.perturbations import CLEAN, PERTURBATIONS, Perturbation
from benchmarks.transcripts import Transcript, read_folder
from gateway.chat_request import conversation_of
from gateway.conversation import Conversation, Message
from gateway.model_files import ModelFiles
from gateway.normalize.memory import TurnMemory
from gateway.normalize.recollection import Recollection
from gateway.normalize.registry import Choice, RuleRegistry, RuleSet
from gateway.normalize.rule import Context, Mode
from gateway.normalize.rules import built_in_rules
from gateway.rendering import PromptRenderer
from gateway.template import ChatTemplate
from gateway.tokenizer import TokenArray, Tokenizer
from prefixcache.hashing import namespace
from prefixcache.interface import PrefixCacheConfig, Prompt, Scope
from prefixcache.shadow import ShadowIndex

TEMPLATE = Path(__file__).with_name("replay_template.jinja")
WANTED = 0.95
AT_ONCE = 8
"""Chats that take turns."""
_UNLIMITED = 1 << 17
_TENANT = "tenant:replay"
_SCOPES = (Scope(namespace({}, scope=_TENANT), 0),)
_NEXT = Message("user", "And then?")
"""Stands behind an answer where it is rendered as history."""


@dataclass
class Tally:
    """Sums over requests."""

    hit_tokens: int = 0
    prompt_tokens: int = 0

    @property
    def rate(self) -> float:
        """Share of all prompt tokens."""
        return self.hit_tokens / max(1, self.prompt_tokens)


@dataclass(frozen=True)
class Model:
    """How prompts become tokens."""

    renderer: PromptRenderer
    end_of_turn: int
    """The token that ends an answer."""
    block_size: int = 32

    @classmethod
    def of_files(cls, files: ModelFiles, template: str, *, end_of_turn: str, block_size: int = 32) -> Model:
        """Read a tokenizer; the template is ours, for few small models have one with tools."""
        tokenizer = Tokenizer(files.tokenizer_file)
        special_tokens = {"bos_token": files.bos_token, "eos_token": files.eos_token}
        renderer = PromptRenderer(ChatTemplate(template, special_tokens=special_tokens), tokenizer)
        (end_id,) = tokenizer.encode(end_of_turn).tolist()
        return cls(renderer, end_id, block_size)

    def answer_ids(self, prompt: TokenArray, conversation: Conversation, answer: Message) -> list[int]:
        """The tokens that an engine would have written for an answer, without the one that ended it."""
        full = self.renderer.token_ids(_with(conversation, answer, _NEXT))
        if not np.array_equal(full[: len(prompt)], prompt):
            return []  # this template changes the history when a turn is added
        behind = full[len(prompt) :].tolist()
        return behind[: behind.index(self.end_of_turn)]


class Server:
    """A gateway with its memory and an engine with its cache, both empty.

    Args:
        model: renders and tokenizes.
        rules: that are on or in audit mode.
        num_blocks: in the pool; None: no limit.
        is_audit: cache what would be forwarded if the rules in audit mode were on.
    """

    def __init__(
        self,
        model: Model,
        rules: RuleSet,
        *,
        num_blocks: int | None = None,
        is_audit: bool = False,
    ) -> None:
        self.tally = Tally()
        self._model = model
        self._rules = rules
        self._is_audit = is_audit
        self._memory = TurnMemory()
        config = PrefixCacheConfig(num_blocks or _UNLIMITED, block_size=model.block_size, growth_reserve=0)
        self._cache = ShadowIndex[None](config)

    def serve(self, body: dict[str, Any], answer: dict[str, Any]) -> None:
        """Answer one request with what the recording has."""
        recollection = Recollection(self._memory, _TENANT)
        context = Context(_TENANT, recollection)
        raw = conversation_of(body)
        normalized = self._rules.normalize(raw, context)
        conversation = normalized.audited if self._is_audit else normalized.conversation
        (message,) = conversation_of({"messages": [answer]}).messages
        prompt = Prompt(self._model.renderer.token_ids(conversation), b"", _SCOPES, 0)
        hit = self._cache.serve(prompt, None)
        self.tally.prompt_tokens += len(prompt.token_ids)
        self.tally.hit_tokens += hit.num_cached_tokens if hit is not None else 0
        answer_ids = self._model.answer_ids(prompt.token_ids, conversation, message)
        self._cache.extend(prompt, answer_ids, None)
        recollection.next_turn(raw, conversation).remember(message, answer_ids)


@dataclass(frozen=True)
class Row:
    """One habit on one set."""

    perturbation: Perturbation
    off: Tally
    audit: Tally
    on: Tally
    maximum: Tally

    @property
    def missing_rules(self) -> list[str]:
        """Rules that would undo it and are not built in."""
        names = {rule.name for rule in built_in_rules().rules}
        return [name for name in self.perturbation.rules if name not in names]

    @property
    def share(self) -> float:
        """Of the maximum, with rules on."""
        return self.on.rate / max(self.maximum.rate, 1e-9)

    def verdict(self) -> tuple[bool, str]:
        """Say whether the rules do what they promise, and how well."""
        if self.missing_rules:
            return True, "no rule: " + ", ".join(self.missing_rules)
        if self.perturbation is CLEAN:
            is_equal = abs(self.on.rate - self.off.rate) < 0.001
            return is_equal, "as without rules" if is_equal else "NOT AS WITHOUT RULES"
        is_enough = self.share >= WANTED
        return is_enough, f"{self.share:.1%} of the maximum" + ("" if is_enough else ": TOO LITTLE")


def play(
    mode: str,
    perturbation: Perturbation,
    transcripts: Sequence[Transcript],
    model: Model,
    *,
    num_turns: int = 24,
    num_blocks: int | None = None,
) -> Tally:
    """Play chats once.

    Args:
        mode: `off`, `audit`, `on`, or `maximum`: without rules, unperturbed, in a pool without a limit.
        perturbation: what the client does to each request.
        transcripts: the chats.
        model: renders and tokenizes.
        num_turns: most turns of a chat.
        num_blocks: in the pool; None: no limit.
    """
    is_maximum = mode == "maximum"
    rules = _rules(built_in_rules(), Mode.OFF if is_maximum else Mode(mode), perturbation.opt_in)
    server = Server(model, rules, num_blocks=None if is_maximum else num_blocks, is_audit=mode == "audit")
    for number, transcript, turn in _order(transcripts, num_turns):
        history = [
            perturbation.answer(message) if message["role"] == "assistant" else message
            for message in transcript.messages[: turn + 1]
        ]
        body = {**transcript.body(turn), "messages": history[:-1]}
        change = CLEAN if is_maximum else perturbation
        server.serve(change.perturbed(body, f"{number}/{turn}"), history[-1])
    return server.tally


def _rules(registry: RuleRegistry, mode: Mode, opt_in: dict[str, Any]) -> RuleSet:
    """Everything that is on by default, and what an operator turned on, in one mode."""
    choices = {rule.name: Choice(mode) for rule in registry.rules if rule.default is Mode.ON}
    choices |= {rule.name: Choice(mode, opt_in[rule.name]) for rule in registry.rules if rule.name in opt_in}
    return registry.rule_set(choices)


def _order(transcripts: Sequence[Transcript], num_turns: int) -> Iterator[tuple[int, Transcript, int]]:
    """Some chats at a time, a turn each."""
    for start in range(0, len(transcripts), AT_ONCE):
        group = list(enumerate(transcripts[start : start + AT_ONCE], start))
        for round_number in range(num_turns):
            for number, transcript in group:
                if round_number < len(transcript.turns):
                    yield number, transcript, transcript.turns[round_number]


def _with(conversation: Conversation, *messages: Message) -> Conversation:
    return Conversation((*conversation.messages, *messages), conversation.tools, conversation.fields)


@dataclass(frozen=True)
class _Options:
    folder: Path
    num_chats: int
    num_turns: int
    num_blocks: int | None


class _Player:
    """Plays in a process of its own."""

    def __init__(self, options: _Options) -> None:
        from engine import model_store  # here, so that tests need no engine

        found = model_store.resolve("smollm2-135m-instruct")
        files = ModelFiles.from_folder(found.folder, found.name)
        self._model = Model.of_files(files, TEMPLATE.read_text(), end_of_turn="<|im_end|>")
        self._options = options
        self._sets = read_folder(options.folder)

    def play(self, mode: str, number: int, set_name: str) -> Tally:
        """Play one set once, with the perturbation of this number."""
        options = self._options
        return play(
            mode,
            PERTURBATIONS[number],
            self._sets[set_name][: options.num_chats],
            self._model,
            num_turns=options.num_turns,
            num_blocks=options.num_blocks,
        )


@functools.cache
def _player(options: _Options) -> _Player:
    """One a process."""
    return _Player(options)


def _work(options: _Options, mode: str, number: int, set_name: str) -> Tally:
    return _player(options).play(mode, number, set_name)


def _rows(pool: Executor, options: _Options, set_name: str) -> Iterator[Row]:
    submit = functools.partial(pool.submit, _work, options)
    numbers = {perturbation.answer: number for number, perturbation in enumerate(PERTURBATIONS)}
    maxima = {answer: submit("maximum", number, set_name) for answer, number in numbers.items()}
    modes = ("off", "audit", "on")
    rows = [[submit(mode, number, set_name) for mode in modes] for number in range(len(PERTURBATIONS))]
    for perturbation, tallies in zip(PERTURBATIONS, rows, strict=True):
        off, audit, on = (tally.result() for tally in tallies)
        yield Row(perturbation, off, audit, on, maxima[perturbation.answer].result())


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table; status 1 where a rule does too little."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.replay", description=__doc__)
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="of transcripts; each folder in it is a set")
    parser.add_argument("--chats", type=int, default=12, help="chats of a set that are played (default: 12)")
    parser.add_argument("--turns", type=int, default=16, help="turns of a chat that are played (default: 16)")
    parser.add_argument("--num-blocks", type=int, help="blocks in the pool (default: no limit)")
    parser.add_argument("--jobs", type=int, default=2, help="processes (default: 2)")
    args = parser.parse_args(argv)
    options = _Options(args.folder, args.chats, args.turns, args.num_blocks)
    set_names = list(read_folder(args.folder))
    if not set_names:
        print(f"replay: {args.folder}: no transcripts", file=sys.stderr)
        return 1
    print(describe())
    print(f"{'set':14}{'what the client does':24}{'off':>8}{'audit':>8}{'on':>8}{'maximum':>9}")
    start, is_fine = time.monotonic(), True
    with ProcessPoolExecutor(args.jobs) as pool:
        for set_name in set_names:
            for row in _rows(pool, options, set_name):
                rates = f"{row.off.rate:8.1%}{row.audit.rate:8.1%}{row.on.rate:8.1%}{row.maximum.rate:9.1%}"
                is_enough, verdict = row.verdict()
                print(f"{set_name:14}{row.perturbation.name:24}{rates}  {verdict}", flush=True)
                is_fine &= is_enough
            print(f"{set_name:14}{row.maximum.prompt_tokens:,} prompt tokens")
    print(f"{time.monotonic() - start:.0f} s")
    return int(not is_fine)


if __name__ == "__main__":
    sys.exit(main())
