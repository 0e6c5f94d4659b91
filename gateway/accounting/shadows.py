"""The shadow caches of one life of the engine, fed one request after another: what each rule saved follows from them.

raw    prompts as they came; what the engine reused beyond it, the rules that are on saved
live   prompts as they were sent: only to see whose change is where they leave what is cached
full   prompts as they would be with the rules in audit mode on; what it reuses beyond the engine, those would save
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gateway.accounting.changes import changes_of
from gateway.accounting.savings import Savings
from gateway.backends.control import HashedPrompt
from gateway.normalize.rule import Mode
from gateway.tokenizer import TokenArray
from prefixcache.interface import PrefixCacheConfig, Prompt, Scope
from prefixcache.shadow import Change, ShadowIndex, owner_at


@dataclass(frozen=True, slots=True, eq=False)
class Steps:
    """A prompt before some rules, after each that fired, and so at last after all of them."""

    prompts: Sequence[HashedPrompt]
    """At least one."""
    rules: Sequence[str]
    """One fewer."""

    def changes(self, borders: TokenArray) -> list[Change]:
        """Where the first prompt was changed."""
        return changes_of([prompt.token_ids for prompt in self.prompts], self.rules, borders)

    def changes_of_last(self, borders: TokenArray) -> list[Change]:
        """Where the last prompt is a changed one."""
        return changes_of([prompt.token_ids for prompt in self.prompts[::-1]], self.rules[::-1], borders)


class Shadows:
    """For one pool and hash seed.

    Args:
        config: of the pool, scaled to the sample.
        borders: ids of the special tokens, int32.
        savings: where the sums go.
    """

    def __init__(self, config: PrefixCacheConfig, borders: TokenArray, savings: Savings) -> None:
        self._config = config
        self._borders = borders
        self._savings = savings
        self._raw = ShadowIndex(config)
        self._live = ShadowIndex(config)
        self._full = ShadowIndex(config)

    def admit(self, on: Steps, audit: Steps | None, num_cached_tokens: int) -> bool:
        """Count one request.

        Args:
            on: from the prompt as it came to the prompt as it was sent.
            audit: from there to the prompt with the rules in audit mode; None: no rule is.
            num_cached_tokens: what the engine reused.

        Returns: False: it is longer than the pool and was not counted.
        """
        hit = self._raw.serve(_prompt(on.prompts[0]), on.changes(self._borders))
        if hit is None:
            return False
        saved = num_cached_tokens - hit.num_cached_tokens
        # What was lost was lost where the prompt that was sent left what is cached.
        owner = hit.owner if saved > 0 else self._owner_in_last(on, num_cached_tokens)
        self._note(on, Mode.ON, owner, saved)
        if audit is not None:
            self._audit(audit, num_cached_tokens)
        return True

    def _audit(self, audit: Steps, num_cached_tokens: int) -> None:
        changes = audit.changes(self._borders)
        leaving = self._live.serve(_prompt(audit.prompts[0]), changes)
        hit = self._full.serve(_prompt(audit.prompts[-1]))
        if leaving is not None and hit is not None:
            saved = hit.num_cached_tokens - num_cached_tokens
            owner = leaving.owner if saved > 0 else self._owner_in_last(audit, hit.num_cached_tokens)
            self._note(audit, Mode.AUDIT, owner, saved)

    def _owner_in_last(self, steps: Steps, token: int) -> str | None:
        return owner_at(steps.changes_of_last(self._borders), token, token + self._config.block_size - 1)

    def _note(self, steps: Steps, mode: Mode, owner: str | None, saved: int) -> None:
        for rule in steps.rules:
            self._savings.of(rule, mode).sampled_requests += 1
        self._savings.credit(owner, mode, saved)

    def extend(self, on: Steps, audit: Steps | None, answer: Sequence[int]) -> None:
        """Cache an answer behind each form of its prompt; the last token of an answer is never computed."""
        known = answer[:-1]
        self._raw.extend(_prompt(on.prompts[0]), known)
        if audit is not None:
            self._live.extend(_prompt(audit.prompts[0]), known)
            self._full.extend(_prompt(audit.prompts[-1]), known)


def _prompt(prompt: HashedPrompt) -> Prompt:
    scopes = tuple(Scope(space, size) for space, size in prompt.scopes)  # type: ignore[arg-type]
    return Prompt(prompt.token_ids, prompt.block_hashes, scopes, prompt.hash_epoch)
