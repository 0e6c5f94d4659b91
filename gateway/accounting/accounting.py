"""Counts what rules save and what was lost, on a sample of the families, beside the traffic and never in its way.

A family is all prompts of a tenant whose canonical form begins with the same block; it is wholly in the sample or out.
A request of the sample is looked at when the engine has admitted it, in one thread, in the order of admission.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from gateway.accounting.changes import border_table
from gateway.accounting.comparison import Comparison
from gateway.accounting.forms import Forms
from gateway.accounting.losses import Losses
from gateway.accounting.maximum import Best
from gateway.accounting.savings import Savings
from gateway.auth import Identity
from gateway.backends.base import Admission, ModelInfo
from gateway.backends.control import HashedPrompt
from gateway.conversation import Conversation
from gateway.errors import GatewayError
from gateway.explain.records import PromptRecord
from gateway.normalize.registry import Normalized, RuleSet
from gateway.normalize.rule import Context, Mode
from prefixcache.interface import PrefixCacheConfig
from prefixcache.shadow import is_sampled, scaled_pool

logger = logging.getLogger(__name__)

MAX_WAITING = 256
"""Requests of the sample that wait to be looked at; more are not counted."""

Hash = Callable[[Conversation, Identity, ModelInfo], HashedPrompt]
"""Renders, tokenizes and hashes a conversation as if it were to be sent.

Raises: GatewayError: it could not be sent.
"""


@dataclass(frozen=True, slots=True, eq=False)
class Origin:
    """Where a prompt came from."""

    normalized: Normalized
    rules: RuleSet
    context: Context


@dataclass(slots=True, eq=False)
class Receipt:
    """A request of the sample while it is answered."""

    on: Forms | None = None
    """From the prompt as it came to the prompt as it was sent. None: it is not counted, or was not looked at yet."""
    audit: Forms | None = None
    """From there to the prompt with the rules in audit mode. None: there are none."""
    best: Best | None = None
    """None: what was possible is not counted here."""
    answer: list[int] = field(default_factory=list)
    """Tokens generated so far; whoever reads the answer puts them in."""


class Accounting:
    """For one gateway.

    Args:
        hash_prompt: see `Hash`; called in a thread.
        special_ids: of the tokenizer.
        sampling: share of the families that is looked at.
        losses: takes what was possible of each prompt and what became of it; None: nobody could tell.
    """

    def __init__(
        self, hash_prompt: Hash, *, special_ids: frozenset[int], sampling: float, losses: Losses | None = None
    ) -> None:
        self.savings = Savings(sampling)
        self.losses = losses
        self._hash = hash_prompt
        self._borders = border_table(special_ids)
        self._sampling = sampling
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="accounting")
        self._num_submitted = 0
        self._num_done = 0  # written by the thread alone
        self._is_closed = False
        self._epoch: int | None = None
        self._on: Comparison | None = None
        self._audit: Comparison | None = None

    def admit(
        self,
        sent: HashedPrompt,
        origin: Origin,
        admission: Admission,
        *,
        identity: Identity,
        model: ModelInfo,
        record: PromptRecord,
    ) -> Receipt | None:
        """Count a request that the engine has just admitted; None: it is not in the sample.

        The receipt goes to `end` when the request is over, however it ended.
        """
        normalized = origin.normalized
        self.count_fired(normalized, admission.num_prompt_tokens)
        if model.cache is None or not self._sampling:
            return None
        is_canonical = normalized.audited is normalized.conversation and not origin.rules.lacking
        if is_canonical and not self._is_sampled(sent, identity, model):
            return None
        if self._num_submitted - self._num_done >= MAX_WAITING:
            self.savings.size.dropped_requests += 1
            return None
        receipt = Receipt()
        self._submit(self._admit, receipt, sent, origin, admission, identity, model, record)
        return receipt

    def count_fired(self, normalized: Normalized, num_prompt_tokens: int) -> None:
        """Count which rules changed a request, and nothing else: all there is of one whose tokens are not known."""
        for name in normalized.fired:
            self.savings.of(name, Mode.ON).fired_requests += 1
        for name in normalized.would_fire:
            self.savings.of(name, Mode.AUDIT).fired_requests += 1
        self.savings.size.requests += 1
        self.savings.size.prompt_tokens += num_prompt_tokens

    def end(self, receipt: Receipt) -> None:
        """Take the answer of a request that is over."""
        self._submit(self._end, receipt)

    async def settle(self) -> None:
        """Wait until all that came so far is counted."""
        await asyncio.wrap_future(self._thread.submit(int))

    def close(self) -> None:
        """Count nothing more; answers that still run may end."""
        self._is_closed = True
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _submit(self, work: Callable[..., None], *arguments: object) -> None:
        def run() -> None:
            try:
                work(*arguments)
            except Exception:
                logger.exception("a request was not counted")
            finally:
                self._num_done += 1

        if not self._is_closed:
            self._num_submitted += 1
            self._thread.submit(run)

    def _is_sampled(self, canonical: HashedPrompt, identity: Identity, model: ModelInfo) -> bool:
        return is_sampled(identity.tenant, canonical.token_ids, block_size=model.block_size, sampling=self._sampling)

    def _admit(
        self,
        receipt: Receipt,
        sent: HashedPrompt,
        origin: Origin,
        admission: Admission,
        identity: Identity,
        model: ModelInfo,
        record: PromptRecord,
    ) -> None:
        size = self.savings.size
        try:
            audit = self._audit_forms(sent, origin, identity, model)
            best = self._best(sent, audit, origin, identity, model)
            canonical = audit.last if audit is not None else best.prompt if best is not None else sent
            if not self._is_sampled(canonical, identity, model):
                return
            on = self._on_forms(sent, origin, identity, model)
        except GatewayError:  # without the rules, or with others, it could not be sent
            size.uncounted_requests += 1
            return
        if not self._count(on, audit, admission.num_cached_tokens, model):
            size.uncounted_requests += 1
            return
        size.sampled_requests += 1
        size.sampled_prompt_tokens += admission.num_prompt_tokens
        if self.losses is not None and best is not None:
            self.losses.count(record, admission, self.losses.maximum_of(self._config(model)).admit(best))
        receipt.on, receipt.audit, receipt.best = on, audit, best

    def _on_forms(self, sent: HashedPrompt, origin: Origin, identity: Identity, model: ModelInfo) -> Forms:
        steps = origin.normalized.steps
        prompts = [*(self._hash(step.before, identity, model) for step in steps), sent]
        return Forms.of(prompts, [step.rule for step in steps], self._borders)

    def _audit_forms(self, sent: HashedPrompt, origin: Origin, identity: Identity, model: ModelInfo) -> Forms | None:
        if not origin.rules.audit:
            return None
        steps = origin.rules.steps(origin.normalized.conversation, origin.context)
        prompts = [sent, *(self._hash(step.after, identity, model) for step in steps)]
        return Forms.of(prompts, [step.rule for step in steps], self._borders)

    def _best(
        self, sent: HashedPrompt, audit: Forms | None, origin: Origin, identity: Identity, model: ModelInfo
    ) -> Best | None:
        """Take the prompt with all safe rules on; it is rendered only where those that lack make another one of it."""
        if self.losses is None:
            return None
        rules, conversation = origin.rules, origin.normalized.conversation
        if audit is not None and rules.lacking == rules.audit:
            return Best.of(sent, audit.last, self._borders)
        changed = rules.best(conversation, origin.context)
        best = sent if changed is conversation else self._hash(changed, identity, model)
        return Best.of(sent, best, self._borders)

    def _count(self, on: Forms, audit: Forms | None, num_cached_tokens: int, model: ModelInfo) -> bool:
        self._begin_life(model)
        assert self._on is not None, "just begun"
        outcome = self._on.admit(on)
        if outcome is None:
            return False
        saved = num_cached_tokens - outcome.before_tokens
        self._note(on, Mode.ON, outcome.saved_by if saved > 0 else outcome.lost_by, saved)
        if audit is not None:
            self._audit = self._audit or self._comparison(model)
            outcome = self._audit.admit(audit)
            if outcome is not None:
                saved = outcome.after_tokens - num_cached_tokens
                self._note(audit, Mode.AUDIT, outcome.saved_by if saved > 0 else outcome.lost_by, saved)
        return True

    def _begin_life(self, model: ModelInfo) -> None:
        """A new life of the engine begins with nothing cached."""
        if self._on is None or self._epoch != model.hash_epoch:
            self._on, self._audit, self._epoch = self._comparison(model), None, model.hash_epoch

    def _comparison(self, model: ModelInfo) -> Comparison:
        return Comparison(self._config(model))

    def _config(self, model: ModelInfo) -> PrefixCacheConfig:
        assert model.cache is not None, "checked at admission"
        return scaled_pool(model.cache, sampling=self._sampling, max_model_len=model.max_model_len)

    def _note(self, forms: Forms, mode: Mode, rule: str | None, saved: int) -> None:
        for fired in forms.rules:
            self.savings.of(fired, mode).sampled_requests += 1
        self.savings.credit(rule, mode, saved)

    def _end(self, receipt: Receipt) -> None:
        if self.losses is not None and self.losses.maximum is not None and receipt.best is not None:
            self.losses.maximum.extend(receipt.best, receipt.answer)
        if receipt.on is None or receipt.on.first.hash_epoch != self._epoch:
            return
        if self._on is not None:
            self._on.extend(receipt.on, receipt.answer)
        if self._audit is not None and receipt.audit is not None:
            self._audit.extend(receipt.audit, receipt.answer)
