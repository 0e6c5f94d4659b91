"""What a running engine can be asked and told beside generating: each `Call` gets exactly one `Reply` with its number.

Loads no torch. Handles name pins and priorities; the caller chooses them, and a handle that is used again replaces what
it named. All of them end with the worker.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from engine.prompt import HashedPrompt
from prefixcache.interface import BlockView, Explanation


class WarmPrompt(HashedPrompt, frozen=True, tag="warm"):
    """Compute the prompt's full blocks ahead of use, in steps that have room. Answered by `Warmed` at the end."""


class PinPrompt(HashedPrompt, frozen=True, tag="pin"):
    """Keep the READY full blocks of a prompt from eviction. Answered by `Pinned`."""

    handle: str


class UnpinPrompt(msgspec.Struct, frozen=True, tag="unpin"):
    """Give a pin back. Answered by `Unpinned` or `NotFound`."""

    handle: str


class PrioritizePrompt(HashedPrompt, frozen=True, tag="prioritize"):
    """Evict the READY full blocks of a prompt after those of a lower level. Answered by `Prioritized`."""

    handle: str
    level: int
    """1 or more; without a priority a block has 0."""
    seconds: float | None = None
    """From now until it expires, by the engine's clock; None: never."""


class EndPriority(msgspec.Struct, frozen=True, tag="end_priority"):
    """Give a priority back. Answered by `Done`, or `NotFound` also where it has expired."""

    handle: str


class SetCacheOptions(msgspec.Struct, frozen=True, tag="cache_options"):
    """Change what may change while serving. Answered by `CacheOptions`; without any value it only asks."""

    max_shared_ratio: float | None = None
    growth_reserve: int | None = None


class GetBlocks(msgspec.Struct, frozen=True, tag="blocks"):
    """Look at a request's block table. Answered by `RequestBlocks`, or `NotFound` where it ended too long ago."""

    request_id: str


class ExplainPrompt(HashedPrompt, frozen=True, tag="explain"):
    """Ask what of a prompt is cached now, and why the rest is not. Answered by `Explained`."""

    reveal_other_scopes: bool = False
    """For the operator only."""


class ExplainRequest(msgspec.Struct, frozen=True, tag="explain_request"):
    """Ask the same of a request at its first admission. Answered by `Explained`, or `NotFound` if that is long ago."""

    request_id: str
    reveal_other_scopes: bool = False
    """For the operator only."""


class GetNamespaces(msgspec.Struct, frozen=True, tag="namespaces"):
    """Count the blocks of each namespace. Answered by `NamespaceBlocks`."""


Order = (
    WarmPrompt
    | PinPrompt
    | UnpinPrompt
    | PrioritizePrompt
    | EndPriority
    | SetCacheOptions
    | GetBlocks
    | ExplainPrompt
    | ExplainRequest
    | GetNamespaces
)


class WarmRefusal(StrEnum):
    """Why a prompt is not cached as a whole: a closed list."""

    DISABLED = "disabled"
    """The prefix cache is off."""
    TOO_LONG = "too_long"
    """It has more tokens than a request may have."""
    DOES_NOT_FIT = "does_not_fit"
    """Pinned blocks, or a step smaller than a block, leave no room for it even while nothing runs."""
    EVICTED = "evicted"
    """Other traffic evicts it as fast as it is computed."""
    FAILED = "failed"
    """The model gave numbers that cannot be cached, or a step failed."""
    ABORTED = "aborted"
    """Whoever asked does not wait any more."""


class Warmed(msgspec.Struct, frozen=True, tag="warmed"):
    """The end of a warm-up."""

    num_cached_tokens: int
    """In the leading full READY blocks of the prompt, now."""
    refusal: WarmRefusal | None = None
    """None: that is all of its full blocks."""


class Pinned(msgspec.Struct, frozen=True, tag="pinned"):
    """A pin, or why there is none; the numbers are those after it."""

    refusal: str | None
    """`prefixcache.interface.PinRefusal`; None: it is pinned."""
    num_blocks: int
    """Blocks of the prompt that are, or would have been, pinned: those READY now."""
    pinned_blocks: int
    pinned_blocks_limit: int
    shared_blocks: int
    shared_blocks_limit: int
    max_request_tokens: int
    """Most tokens of prompt and answer together beside all pins."""


class Unpinned(msgspec.Struct, frozen=True, tag="unpinned"):
    """A pin is given back."""

    max_request_tokens: int
    """As in `Pinned`."""


class Prioritized(msgspec.Struct, frozen=True, tag="prioritized"):
    """A priority is in force."""

    num_blocks: int
    """Blocks of the prompt that were READY, and so are covered."""


class CacheOptions(msgspec.Struct, frozen=True, tag="options"):
    """What may change while serving, as it is now."""

    max_shared_ratio: float
    growth_reserve: int


class RequestBlocks(msgspec.Struct, frozen=True, tag="request_blocks"):
    """A request's block table: now, or when the request ended."""

    status: str
    """`waiting`: it has no blocks now; `running`; `ended`."""
    num_prompt_tokens: int
    num_cached_tokens: int
    """At its first admission, as in its usage figures."""
    reasons: dict[str, int]
    """Prompt blocks by reason at its first admission, in the order of the blocks."""
    blocks: list[BlockView]
    """In order; prompt blocks first."""


class Explained(msgspec.Struct, frozen=True, tag="explained"):
    """What of a prompt is, or was, cached."""

    explanation: Explanation
    nearest_request_id: str | None
    """Who computed the nearest cached chain; None: a warm-up, or it is forgotten."""


class NamespaceBlocks(msgspec.Struct, frozen=True, tag="namespace_blocks"):
    """Whose the blocks are."""

    num_blocks: dict[bytes, int]
    """Of each namespace, those that are cached or being computed; a block that nobody else can find is nobody's."""


class Done(msgspec.Struct, frozen=True, tag="done"):
    """It is done, and there is nothing more to say."""


class NotFound(msgspec.Struct, frozen=True, tag="not_found"):
    """There is nothing of that name; told apart from an error, for it may just have ended."""

    message: str


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """The order is malformed."""

    message: str
    param: str | None
    """The field at fault."""


Outcome = (
    Warmed
    | Pinned
    | Unpinned
    | Prioritized
    | CacheOptions
    | RequestBlocks
    | Explained
    | NamespaceBlocks
    | Done
    | NotFound
    | Refused
)


class Call(msgspec.Struct, frozen=True, tag="call"):
    """One order."""

    call_id: int
    """Unique for the life of the worker."""
    order: Order


class CancelCall(msgspec.Struct, frozen=True, tag="cancel"):
    """Nobody waits for this reply any more: a warm-up ends. Whatever is over already is left alone."""

    call_id: int


class Reply(msgspec.Struct, frozen=True, tag="reply"):
    """The outcome of one call."""

    call_id: int
    outcome: Outcome
