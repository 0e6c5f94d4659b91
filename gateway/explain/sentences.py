"""One sentence for people about a miss."""

from __future__ import annotations

from collections.abc import Callable

from gateway.explain.places import Place
from prefixcache.interface import Explanation, Reason


def sentence(explanation: Explanation, place: Place | None, *, block_size: int, cut_tokens: int | None = None) -> str:
    """Say what happened, in words that need no knowledge of blocks; `cut_tokens`: see `cuts.cut_tokens`."""
    if cut_tokens is not None:
        return _cut(explanation, place, cut_tokens)
    return _SENTENCES[explanation.reason](explanation, place, block_size)


def _all_reused(explanation: Explanation, _: Place | None, __: int) -> str:
    return f"All of the prompt that could be reused was: {_of_all(explanation)} tokens."


def _copied(explanation: Explanation, place: Place | None, _: int) -> str:
    where = _where(explanation, place)
    return f"{_of_all(explanation)} tokens were reused, the last ones as a copy of a part of a block{where}."


def _share_cap(explanation: Explanation, _: Place | None, __: int) -> str:
    return (
        f"{_of_all(explanation)} tokens were reused, some as private copies: as much of the pool as max_shared_ratio "
        "allows was in common use."
    )


def _never_cached(explanation: Explanation, place: Place | None, block_size: int) -> str:
    if explanation.diverging_token is not None:
        where = _where(explanation, place)
        return f"{_of_all(explanation)} tokens were reused; no cached block begins like this prompt{where}."
    if explanation.num_cached_tokens == 0:
        return f"Nothing that begins like this prompt was cached, so all {explanation.num_prompt_tokens} tokens were computed."
    rest = explanation.num_prompt_tokens - explanation.num_cached_tokens
    if rest < block_size:
        return f"All full blocks were reused; the last {rest} tokens fill no block of {block_size}."
    return f"{_of_all(explanation)} tokens were reused; the cached text ends there, and what follows is new."


def _diverged(explanation: Explanation, place: Place | None, _: int) -> str:
    return f"{_of_all(explanation)} tokens were reused{_where(explanation, place)}; all behind was computed again."


def _cut(explanation: Explanation, place: Place | None, num_tokens: int) -> str:
    return (
        f"{_of_all(explanation)} tokens were reused{_where(explanation, place)}, for the context policy cut this chat here: "
        f"about {num_tokens} tokens are left out. What stands behind the cut is new once; the next requests reuse it."
    )


def _evicted(explanation: Explanation, _: Place | None, __: int) -> str:
    ago = explanation.evictions_ago
    since = f", with {ago} more since" if ago else ""
    return (
        f"{_of_all(explanation)} tokens were reused; the next ones had been cached and were evicted to make room{since}. "
        "A larger pool, a pin or a priority keeps them."
    )


def _cold_restart(explanation: Explanation, _: Place | None, __: int) -> str:
    return (
        f"{_of_all(explanation)} tokens were reused; the next ones were cached before the engine restarted, and a new "
        "process begins empty."
    )


def _below_min_reuse(explanation: Explanation, _: Place | None, __: int) -> str:
    rest = explanation.num_common_tokens - explanation.num_cached_tokens
    return f"{_of_all(explanation)} tokens were reused; {rest} more are cached, too few to be worth a copy."


def _not_ready(explanation: Explanation, _: Place | None, __: int) -> str:
    return (
        f"{_of_all(explanation)} tokens were reused; another request was computing the next "
        f"{explanation.num_pending_tokens} at the same time."
    )


def _disabled(explanation: Explanation, _: Place | None, __: int) -> str:
    why = "The prefix cache is off, or log probabilities of the prompt were asked for"
    return f"{why}, so all {explanation.num_prompt_tokens} tokens were computed."


def _other_scope(explanation: Explanation, _: Place | None, __: int) -> str:
    return (
        f"{_of_all(explanation)} tokens were reused; only another tenant has the rest. Tenants share nothing but prompts "
        "that are registered as public."
    )


def _of_all(explanation: Explanation) -> str:
    return f"{explanation.num_cached_tokens} of {explanation.num_prompt_tokens}"


def _where(explanation: Explanation, place: Place | None) -> str:
    if explanation.diverging_token is None:
        return ""
    owner = f" in {place.owner}" if place else ""
    return f"; it differs from the nearest one at token {explanation.diverging_token}{owner}"


_SENTENCES: dict[Reason, Callable[[Explanation, Place | None, int], str]] = {
    Reason.HIT: _all_reused,
    Reason.COPIED: _copied,
    Reason.SHARE_CAP: _share_cap,
    Reason.NEVER_CACHED: _never_cached,
    Reason.DIVERGED: _diverged,
    Reason.EVICTED: _evicted,
    Reason.COLD_RESTART: _cold_restart,
    Reason.BELOW_MIN_REUSE: _below_min_reuse,
    Reason.NOT_READY: _not_ready,
    Reason.DISABLED: _disabled,
    Reason.OTHER_SCOPE: _other_scope,
}
