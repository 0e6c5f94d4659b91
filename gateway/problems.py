"""Anything wrong, in words: facts of a gateway in, sentences out. Pure; knows neither where the facts come from nor HTTP."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal
from urllib.parse import quote

from gateway.prompts.condition import PromptCondition

Severity = Literal["error", "warning", "info"]

MANY_WAITING_ROWS = 2_000
"""Rows of the request log that wait while the database answers: it cannot keep up."""
LONG_WAIT_SECONDS = 15.0
"""For so long there were always requests before admission."""
MIN_ANSWERS = 10
"""Fewer say nothing of a share of errors."""
MANY_ERRORS = 0.05
MANY_EVICTED = 0.05
"""Share of the prompt blocks that would have been found, had they not been evicted."""
MIN_CUT_REQUESTS = 20
"""Fewer say nothing of how often chats are cut."""
MANY_CUTS = 1 / 3
"""Cuts to a request that goes without something: between two of a chat should lie more requests."""
MIN_UNSEEN_REQUESTS = 100
"""So many requests without one in the sample are no accident of a start."""
_MAX_NAMES = 3


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that is wrong."""

    severity: Severity
    code: str
    """In one word, for programs."""
    text: str
    """In a sentence or two: what it is, and what to do about it."""
    view: str | None
    """The page of the dashboard that shows more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Of one moment. `lately`: within the last minutes (`lately.SPAN_SECONDS`). What is not there has nothing wrong."""

    engine_state: str | None = None
    """As `Backend.state`; None: there is no engine here."""
    engine_answers: bool = True
    """Whether it serves, and answered when it was asked."""
    num_upstreams: int = 0
    silent_upstreams: Sequence[str] = ()
    database_is_up: bool = True
    waiting_rows: int = 0
    """Of the request log."""
    dropped_rows: int = 0
    """Since the gateway's start: they are missing for good."""
    prompts: Sequence[PromptCondition] = ()
    """The registered ones, those that are active."""
    shared_blocks: int = 0
    shared_blocks_limit: int = 0
    share_cap_copies: int = 0
    """Lately."""
    looked_up_blocks: int = 0
    """Of prompts, lately."""
    evicted_misses: int = 0
    """Of those, not found because they were evicted."""
    waiting_requests: int = 0
    waiting_seconds: float = 0.0
    """For so long there were some at each look."""
    answers: int = 0
    """Of `/v1`, lately."""
    failed_answers: int = 0
    """Of those, with a status from 500 on."""
    limited_answers: int = 0
    """Of those, refused by a limit (429)."""
    too_long_answers: int = 0
    """Of those, refused for more tokens than the window has (`context_length_exceeded`)."""
    has_context_policy: bool = False
    """Whether it is on for anybody."""
    context_requests: int = 0
    """From which the context policy left something out, lately."""
    context_cuts: int = 0
    """Of those, that it cut further than the request before."""
    template_faults: Sequence[str] = ()
    """What about the chat template loses the cache."""
    sampling: float | None = None
    """None: nothing is accounted for here."""
    seen_requests: int = 0
    """Whose tokens were known to the accounting."""
    sampled_requests: int = 0
    unsampled_drops: int = 0
    """Requests that the accounting had no time for, lately."""


def problems(facts: Facts) -> list[Problem]:
    """List what is wrong, the most serious first; empty: nothing is."""
    found = [problem for check in CHECKS for problem in check(facts)]
    return sorted(found, key=lambda problem: _SEVERITIES.index(problem.severity))


_SEVERITIES: Sequence[Severity] = ("error", "warning", "info")


def _engine(facts: Facts) -> Iterator[Problem]:
    state = facts.engine_state
    if state is None or (facts.engine_answers and state == "ready"):
        return
    word, _, why = state.partition(": ")
    told = f" ({why})" if why else ""
    if word == "failed":
        yield Problem("error", "engine_failed", f"The engine cannot start{told}: mend that and restart.", None)
    elif word == "restarting":
        text = f"The engine ended{told} and is being restarted; until then requests are answered 503."
        yield Problem("error", "engine_restarting", text, None)
    elif word == "ready":
        text = "The engine does not answer: it is busy with a very long step, or hangs and will be restarted."
        yield Problem("error", "engine_silent", text, None)
    else:
        text = f"The engine is not ready yet, it is {state}; until then requests are answered 503."
        yield Problem("warning", "engine_not_ready", text, None)


def _upstreams(facts: Facts) -> Iterator[Problem]:
    silent = facts.silent_upstreams
    if silent and len(silent) == facts.num_upstreams:
        text = f"No upstream answers ({_names(silent)}): requests are answered 503."
        yield Problem("error", "no_upstream", text, None)
    elif silent:
        does = "does" if len(silent) == 1 else "do"
        text = f"{_names(silent)} {does} not answer; the other upstreams take the requests."
        yield Problem("warning", "upstream_down", text, None)


def _database(facts: Facts) -> Iterator[Problem]:
    if not facts.database_is_up:
        text = (
            "The database does not answer: keys, prompts and rules stay as they were last read, and "
            f"{facts.waiting_rows:,} rows of the request log wait in memory."
        )
        yield Problem("error", "database_down", text, None)
    elif facts.waiting_rows >= MANY_WAITING_ROWS:
        text = f"{facts.waiting_rows:,} rows of the request log wait in memory: the database does not keep up."
        yield Problem("warning", "log_waiting", text, "#/requests")


def _dropped_rows(facts: Facts) -> Iterator[Problem]:
    if facts.dropped_rows:
        text = f"{facts.dropped_rows:,} rows of the request log were dropped since the start; lists and sums lack them."
        yield Problem("warning", "log_dropped", text, "#/requests")


def _errors(facts: Facts) -> Iterator[Problem]:
    if facts.answers >= MIN_ANSWERS and facts.failed_answers >= MANY_ERRORS * facts.answers:
        share = facts.failed_answers / facts.answers
        text = f"{share:.0%} of the last {facts.answers:,} answers were errors of this side (status 500 and more)."
        yield Problem("error" if share >= 0.5 else "warning", "many_errors", text, "#/requests")


def _limited(facts: Facts) -> Iterator[Problem]:
    if facts.answers >= MIN_ANSWERS and facts.limited_answers >= MANY_ERRORS * facts.answers:
        share = facts.limited_answers / facts.answers
        text = f"{share:.0%} of the last {facts.answers:,} answers were refusals: a tenant or a key is at its limit."
        yield Problem("warning", "many_limited", text, "#/tenants")


def _too_long(facts: Facts) -> Iterator[Problem]:
    is_often = facts.answers >= MIN_ANSWERS and facts.too_long_answers >= MANY_ERRORS * facts.answers
    if is_often and not facts.has_context_policy:
        share = facts.too_long_answers / facts.answers
        text = (
            f"{share:.0%} of the last {facts.answers:,} answers were refusals of what is too long for the model. Start the "
            "gateway with --context-policy on, or turn the rule context_policy on, to have such chats cut to what fits."
        )
        yield Problem("info", "many_too_long", text, "#/why")


def _frequent_cuts(facts: Facts) -> Iterator[Problem]:
    if facts.context_requests >= MIN_CUT_REQUESTS and facts.context_cuts >= MANY_CUTS * facts.context_requests:
        text = (
            f"The context policy cuts chats again and again: {facts.context_cuts:,} times lately, in {facts.context_requests:,} "
            "requests that were too long. What stands behind a cut is computed anew. A low further below high, parameters "
            "of context_policy, makes cuts rarer; chats that are too long from their first request on cannot do with fewer."
        )
        yield Problem("info", "frequent_cuts", text, "#/why")


def _waiting(facts: Facts) -> Iterator[Problem]:
    if facts.waiting_requests and facts.waiting_seconds >= LONG_WAIT_SECONDS:
        text = (
            f"Requests that wait for the engine: {facts.waiting_requests:,}; and for {facts.waiting_seconds:.0f} s some always "
            "did: it gets more than it can do."
        )
        yield Problem("warning", "requests_waiting", text, "#/requests")


def _template(facts: Facts) -> Iterator[Problem]:
    if facts.template_faults:
        text = "The chat template loses the cache. " + " ".join(facts.template_faults)
        yield Problem("warning", "template_loses_cache", text, "#/why")


def _cold_prompts(facts: Facts) -> Iterator[Problem]:
    failed = [prompt for prompt in facts.prompts if prompt.status == "failed"]
    if failed:
        text = f"{_are_prompts(failed)} could not be computed ahead of use: {failed[0].detail}."
        yield Problem("warning", "prompt_failed", text, _prompt_view(failed))
    cold = [prompt for prompt in facts.prompts if prompt.status in ("waiting", "not_in_time")]
    if cold and facts.engine_answers:  # else that is what is wrong
        text = f"{_are_prompts(cold)} {_is(cold)} not in the cache yet: the first requests compute them."
        yield Problem("info", "prompt_cold", text, _prompt_view(cold))


def _demoted_pins(facts: Facts) -> Iterator[Problem]:
    demoted = [prompt for prompt in facts.prompts if prompt.lacks_pin]
    if demoted:
        text = f"{_are_prompts(demoted)} {_is(demoted)} not pinned as wanted: {demoted[0].detail}."
        yield Problem("warning", "prompt_not_pinned", text, _prompt_view(demoted))


def _drift(facts: Facts) -> Iterator[Problem]:
    drifting = [prompt for prompt in facts.prompts if prompt.num_drifting]
    if drifting:
        first = drifting[0]
        text = (
            f"{sum(prompt.num_drifting for prompt in drifting):,} requests were nearly {_are_prompts(drifting, 'the ')} and "
            f"missed the cache; they differ first in {first.drifts_in}."
        )
        yield Problem("warning", "prompt_drift", text, _prompt_view(drifting))


def _sharing_cap(facts: Facts) -> Iterator[Problem]:
    limit, copies = facts.shared_blocks_limit, facts.share_cap_copies
    if not limit or not (copies or facts.shared_blocks >= limit):  # 0: nothing is to be shared
        return
    text = (
        f"The sharing cap is reached: {facts.shared_blocks:,} of at most {limit:,} blocks are shared, and lately {copies:,} "
        "were copied in place of being shared. A larger max_shared_ratio lets more requests share."
    )
    yield Problem("warning", "sharing_cap", text, "#/why")


def _small_pool(facts: Facts) -> Iterator[Problem]:
    if facts.evicted_misses and facts.evicted_misses >= MANY_EVICTED * facts.looked_up_blocks:
        share = facts.evicted_misses / facts.looked_up_blocks
        text = (
            f"The block pool is too small for this traffic: {share:.0%} of the blocks that prompts looked for lately were "
            "cached once and evicted. More memory for the cache would keep them."
        )
        yield Problem("warning", "small_pool", text, "#/why")


def _accounting(facts: Facts) -> Iterator[Problem]:
    if facts.unsampled_drops:
        text = (
            f"The accounting had no time for {facts.unsampled_drops:,} requests lately, so what it counts is too little. "
            "Set --accounting-sampling lower."
        )
        yield Problem("warning", "accounting_dropped", text, "#/why")
    if facts.sampling and facts.seen_requests >= MIN_UNSEEN_REQUESTS and not facts.sampled_requests:
        text = (
            f"None of {facts.seen_requests:,} requests is in the sample of {facts.sampling:.0%} of the prompt families, so "
            "nothing is known of what rules save. Set --accounting-sampling higher, or 1 for all."
        )
        yield Problem("info", "accounting_sees_nothing", text, "#/why")


CHECKS: Sequence[Callable[[Facts], Iterable[Problem]]] = (
    _engine,
    _upstreams,
    _database,
    _errors,
    _limited,
    _too_long,
    _frequent_cuts,
    _dropped_rows,
    _waiting,
    _template,
    _cold_prompts,
    _demoted_pins,
    _drift,
    _small_pool,
    _sharing_cap,
    _accounting,
)
"""In the order in which those of one severity are listed."""


def _names(names: Sequence[str]) -> str:
    more = len(names) - _MAX_NAMES
    return ", ".join(names[:_MAX_NAMES]) + (f" and {more} more" if more > 0 else "")


def _are_prompts(prompts: Sequence[PromptCondition], article: str = "The ") -> str:
    noun = "registered prompt" if len(prompts) == 1 else "registered prompts"
    return f"{article}{noun} {_names([prompt.name for prompt in prompts])}"


def _is(prompts: Sequence[PromptCondition]) -> str:
    return "is" if len(prompts) == 1 else "are"


def _prompt_view(prompts: Sequence[PromptCondition]) -> str:
    return f"#/prompts/{quote(prompts[0].name, safe='')}" if len(prompts) == 1 else "#/prompts"
