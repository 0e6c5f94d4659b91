"""How much of perturbed chats is reused: without rules, with them, and as audit mode foretells it.

    python -m benchmarks.replay FOLDER

Plays recorded chats (`benchmarks.transcripts`) turn by turn through the gateway's rules, renderer and tokenizer and the
prefix cache's own code; several at a time take turns. What the recording shows as answer counts as what the engine
returned. Each row is one habit of clients (`benchmarks.perturbations`); *maximum* is the same chats unperturbed, without
rules. The pool has no limit unless `--num-blocks` sets one.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
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
from gateway.normalize.registry import Choice, Normalized, RuleRegistry, RuleSet
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
    def of_files(cls, files: ModelFiles, template: str, block_size: int = 32) -> Model:
        """Read a tokenizer; the template is ours, for few small models have one with tools."""
        tokenizer = Tokenizer(files.tokenizer_file)
        special_tokens = {"bos_token": files.bos_token, "eos_token": files.eos_token}
        renderer = PromptRenderer(ChatTemplate(template, special_tokens=special_tokens), tokenizer)
        (end_of_turn,) = tokenizer.encode(files.eos_token).tolist()
        return cls(renderer, end_of_turn, block_size)

    def answer_ids(self, prompt: TokenArray, conversation: Conversation, answer: Message) -> list[int]:
        """The tokens that an engine would have written for an answer, without the one that ended it."""
        full = self.renderer.token_ids(_with(conversation, answer, _NEXT))
        if not np.array_equal(full[: len(prompt)], prompt):
            return []  # this template changes the history when a turn is added
        behind = full[len(prompt) :].tolist()
        return behind[: behind.index(self.end_of_turn)]


class Server:
    """A gateway with its memory and an engine with its cache, both empty."""

    def __init__(
        self,
        model: Model,
        rules: RuleSet,
        forwarded: Callable[[Normalized], Conversation] = lambda normalized: normalized.conversation,
        *,
        num_blocks: int | None = None,
    ) -> None:
        self.tally = Tally()
        self._model = model
        self._rules = rules
        self._forwarded = forwarded
        self._memory = TurnMemory()
        config = PrefixCacheConfig(num_blocks or _UNLIMITED, block_size=model.block_size, growth_reserve=0)
        self._cache = ShadowIndex[None](config)

    def serve(self, body: dict[str, Any], answer: dict[str, Any]) -> None:
        """Answer one request with what the recording has."""
        recollection = Recollection(self._memory, _TENANT)
        context = Context(_TENANT, recollection)
        raw = conversation_of(body)
        conversation = self._forwarded(self._rules.normalize(raw, context))
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

    set_name: str
    perturbation: Perturbation
    off: Tally
    audit: Tally
    on: Tally
    maximum: Tally
    missing_rules: Sequence[str]

    @property
    def share(self) -> float:
        """Of the maximum, with rules on."""
        return self.on.rate / max(self.maximum.rate, 1e-9)


def replay(
    set_name: str,
    transcripts: Sequence[Transcript],
    model: Model,
    *,
    perturbations: Sequence[Perturbation] = PERTURBATIONS,
    registry: RuleRegistry | None = None,
    num_turns: int = 24,
    num_blocks: int | None = None,
) -> Iterator[Row]:
    """Play one set with each perturbation."""
    registry = registry or built_in_rules()
    names = [rule.name for rule in registry.rules]
    maxima: dict[Any, Tally] = {}
    for perturbation in perturbations:
        params = {name: opt for name, opt in perturbation.opt_in.items() if name in names}
        servers = {
            "off": Server(model, _rules(registry, Mode.OFF, {}), num_blocks=num_blocks),
            "on": Server(model, _rules(registry, Mode.ON, params), num_blocks=num_blocks),
            "audit": Server(
                model,
                _rules(registry, Mode.AUDIT, params),
                lambda normalized: normalized.audited,
                num_blocks=num_blocks,
            ),
        }
        for server in servers.values():
            _play(server, transcripts, perturbation.perturbed, perturbation, num_turns)
        if perturbation.answer not in maxima:
            unperturbed = Server(model, _rules(registry, Mode.OFF, {}))
            _play(unperturbed, transcripts, CLEAN.perturbed, perturbation, num_turns)
            maxima[perturbation.answer] = unperturbed.tally
        tallies = {name: server.tally for name, server in servers.items()}
        missing = [name for name in perturbation.rules if name not in names]
        yield Row(set_name, perturbation, **tallies, maximum=maxima[perturbation.answer], missing_rules=missing)


def _rules(registry: RuleRegistry, mode: Mode, opt_in: dict[str, Any]) -> RuleSet:
    """Everything that is on by default, and what an operator turned on, in one mode."""
    defaults = {rule.name: Choice(mode) for rule in registry.rules if rule.default is Mode.ON}
    return registry.rule_set({**defaults, **{name: Choice(mode, params) for name, params in opt_in.items()}})


def _play(
    server: Server,
    transcripts: Sequence[Transcript],
    perturbed: Callable[[dict[str, Any], str], dict[str, Any]],
    perturbation: Perturbation,
    num_turns: int,
) -> None:
    for number, transcript, turn in _order(transcripts, num_turns):
        history = [
            perturbation.answer(message) if message["role"] == "assistant" else message
            for message in transcript.messages[: turn + 1]
        ]
        body = {**transcript.body(turn), "messages": history[:-1]}
        server.serve(perturbed(body, f"{number}/{turn}"), history[-1])


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


def verdict(row: Row) -> str:
    """Say whether the rules do what they promise."""
    if row.missing_rules:
        return "no rule: " + ", ".join(row.missing_rules)
    if row.perturbation is CLEAN:
        return "as without rules" if abs(row.on.rate - row.off.rate) < 0.001 else "RULES CHANGE IT"
    return f"{row.share:.1%} of the maximum" + ("" if row.share >= WANTED else ", TOO LITTLE")


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table; status 1 where a rule does too little."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.replay", description=__doc__)
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="of transcripts; each folder in it is a set")
    parser.add_argument("--chats", type=int, default=16, help="chats of a set that are played (default: 16)")
    parser.add_argument("--turns", type=int, default=24, help="turns of a chat that are played (default: 24)")
    parser.add_argument("--num-blocks", type=int, help="blocks in the pool (default: no limit)")
    args = parser.parse_args(argv)
    sets = read_folder(args.folder)
    if not sets:
        print(f"replay: {args.folder}: no transcripts", file=sys.stderr)
        return 1
    from engine import model_store  # here, so that tests need no engine

    found = model_store.resolve("smollm2-135m-instruct")
    model = Model.of_files(ModelFiles.from_folder(found.folder, found.name), TEMPLATE.read_text())
    print(describe())
    start, failed = time.monotonic(), False
    print(f"{'set':14}{'what the client does':24}{'off':>8}{'audit':>8}{'on':>8}{'maximum':>9}")
    for name, transcripts in sets.items():
        rows = replay(name, transcripts[: args.chats], model, num_turns=args.turns, num_blocks=args.num_blocks)
        for row in rows:
            rates = f"{row.off.rate:8.1%}{row.audit.rate:8.1%}{row.on.rate:8.1%}{row.maximum.rate:9.1%}"
            print(f"{name:14}{row.perturbation.name:24}{rates}  {verdict(row)}", flush=True)
            failed |= verdict(row).isupper() or "TOO LITTLE" in verdict(row) or "RULES" in verdict(row)
        print(f"{name:14}{row.maximum.prompt_tokens:,} prompt tokens unperturbed")
    print(f"{time.monotonic() - start:.0f} s")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
