"""One prompt before and after some rules, and which rule keeps two prompts apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gateway.accounting.changes import BorderTable, changes_of
from gateway.backends.control import HashedPrompt
from prefixcache.hashing import HASH_BYTES
from prefixcache.interface import Namespace, Prompt, Scope


@dataclass(frozen=True, slots=True)
class Span:
    """Tokens [start, stop) that a rule changed; an empty span: it dropped what stood there."""

    rule: str
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Form:
    """A prompt as far as it is compared: the hashes of its blocks, and which of its tokens are touched by rules."""

    block_hashes: bytes
    spans: Sequence[Span]

    def parting_rule(self, other: Form, block_size: int) -> str | None:
        """Name the rule whose change is where two prompts part; of several the one that changed least.

        None: no rule changed anything in the first block in which they differ, or one begins with all of the other.
        """
        block = _first_different(self.block_hashes, other.block_hashes)
        if block is None:
            return None
        start, stop = block * block_size, (block + 1) * block_size
        touching = (span for form in (self, other) for span in form.spans if span.start < stop and start <= span.stop)
        least = min(touching, key=lambda span: span.stop - span.start, default=None)
        return None if least is None else least.rule


def _first_different(one: bytes, other: bytes) -> int | None:
    size = min(len(one), len(other))
    if one[:size] == other[:size]:
        return None
    # Hashes are chained, so all behind the first that differs do.
    low, high = 0, size // HASH_BYTES - 1
    while low < high:
        middle = (low + high) // 2
        end = (middle + 1) * HASH_BYTES
        low, high = (middle + 1, high) if one[:end] == other[:end] else (low, middle)
    return low


@dataclass(frozen=True, slots=True, eq=False)
class Forms:
    """A prompt without and with some rules."""

    first: HashedPrompt
    last: HashedPrompt
    rules: Sequence[str]
    """Those that fired."""
    without: Form
    """Of `first`."""
    with_rules: Form
    """Of `last`."""

    @classmethod
    def of(cls, prompts: Sequence[HashedPrompt], rules: Sequence[str], borders: BorderTable) -> Forms:
        """Tell what the rules changed.

        Args:
            prompts: before the rules, and then after each that fired.
            rules: their names in order, one fewer.
            borders: see `border_table`.
        """
        changes = changes_of([prompt.token_ids for prompt in prompts], rules, borders)
        before = [Span(rule, place.start, place.stop) for rule, place in changes]
        after = [Span(rule, place.new_start, place.new_stop) for rule, place in changes]
        first, last = prompts[0], prompts[-1]
        return cls(first, last, rules, Form(first.block_hashes, before), Form(last.block_hashes, after))


def prompt_of(hashed: HashedPrompt) -> Prompt:
    """Make it the prefix cache's."""
    scopes = tuple(Scope(Namespace(space), size) for space, size in hashed.scopes)
    return Prompt(hashed.token_ids, hashed.block_hashes, scopes, hashed.hash_epoch)
