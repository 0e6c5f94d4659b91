"""Computes prompts ahead of use, in the room that a step has left. Loads no torch.

A warm-up holds blocks during a step only: it takes the cached part of its prompt, computes one chunk of whole blocks
behind it, and lets go. What it has computed so far is cached like anything else, and found again at its next turn. So it
can neither keep memory from a request nor be preempted, and an evicted part is simply computed once more.

It generates nothing and is counted nowhere: admissions and their counters are the scheduler's.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from engine.batch import ScheduledRequest, SchedulerOutput, StepOutput
from engine.calls import Reply, Warmed, WarmRefusal
from engine.config import SchedulerConfig
from engine.messages import SamplingParams
from prefixcache import BlockTable, PrefixCache
from prefixcache.hashing import HASH_BYTES
from prefixcache.interface import Prompt

REQUEST_ID = "warm-up"
"""The only one in a step. The gateway's ids are numbers."""
MAX_COMPUTED_RATIO = 3
"""A prompt is given up when more than this many times its tokens were computed for it: traffic evicts it at once."""
_NO_SAMPLING = SamplingParams(max_tokens=1)


@dataclass(slots=True)
class _WarmUp:
    call_id: int
    prompt: Prompt
    num_tokens: int
    """In its full blocks."""
    num_computed_tokens: int = 0
    """Over all its steps."""


@dataclass(frozen=True, slots=True)
class _Chunk:
    """What the current step computes."""

    table: BlockTable
    num_new_tokens: int


class WarmUps:
    """A queue of prompts, worked off one at a time."""

    def __init__(self, cache: PrefixCache, config: SchedulerConfig, *, max_num_seqs: int, max_model_len: int) -> None:
        self._cache = cache
        self._config = config
        self._max_num_seqs = max_num_seqs
        self._max_model_len = max_model_len
        self._queue: deque[_WarmUp] = deque()
        self._chunk: _Chunk | None = None
        self._has_run = False
        self._replies: list[Reply] = []

    @property
    def has_work(self) -> bool:
        """Whether a prompt is still to be computed, or a reply to be taken."""
        return bool(self._queue or self._replies)

    def add(self, call_id: int, prompt: Prompt) -> None:
        """Queue a prompt; how it ended is told by `take_replies`."""
        block_size = self._cache.config.block_size
        num_tokens = len(prompt.token_ids) // block_size * block_size
        warm_up = _WarmUp(call_id, prompt, num_tokens)
        if not self._cache.config.enabled:
            self._end(warm_up, WarmRefusal.DISABLED)
        elif len(prompt.token_ids) > self._max_model_len:
            self._end(warm_up, WarmRefusal.TOO_LONG)
        elif num_tokens > self._cache.max_request_tokens(prompt) or self._config.max_num_batched_tokens < block_size:
            self._end(warm_up, WarmRefusal.DOES_NOT_FIT)
        else:
            self._queue.append(warm_up)

    def cancel(self, call_id: int) -> None:
        """Give a prompt up, if it is still there; called between two steps."""
        for warm_up in [warm_up for warm_up in self._queue if warm_up.call_id == call_id]:
            self._queue.remove(warm_up)
            self._end(warm_up, WarmRefusal.ABORTED)

    def take_replies(self) -> list[Reply]:
        """Return the replies of those that ended since the last call."""
        replies, self._replies = self._replies, []
        return replies

    def join(self, step: SchedulerOutput, *, is_alone: bool) -> None:
        """Add one chunk to a step that the scheduler has put together, if there is room.

        Args:
            step: what users get in this step.
            is_alone: no request has blocks, so that what does not fit now never will.
        """
        if not self._queue:
            return
        room = self._room(step)
        while self._queue and room >= self._cache.config.block_size:
            warm_up = self._queue[0]
            if warm_up.num_computed_tokens > MAX_COMPUTED_RATIO * warm_up.num_tokens:
                refusal = WarmRefusal.EVICTED
            elif (num_ready := self._cache.num_ready_tokens(warm_up.prompt)) >= warm_up.num_tokens:
                refusal = None
            elif self._schedule(warm_up, step, num_ready, room) or not is_alone:
                return
            else:
                refusal = WarmRefusal.DOES_NOT_FIT
            self._queue.popleft()
            self._end(warm_up, refusal)

    def update(self, result: StepOutput) -> None:
        """Enter what the step produced for the chunk, and let go of its blocks."""
        if self._chunk is None:
            return
        if result.failed.pop(REQUEST_ID, None) is not None:
            self.fail()
            return
        chunk, self._chunk = self._chunk, None
        self._queue[0].num_computed_tokens += chunk.num_new_tokens
        self._cache.commit(chunk.table, chunk.table.num_tokens)
        self._cache.free(chunk.table)

    def fail(self) -> bool:
        """End the prompt whose chunk was in a step that came to nothing; False: there was none."""
        chunk, self._chunk = self._chunk, None
        if chunk is None:
            return False
        self._cache.free(chunk.table)
        self._end(self._queue.popleft(), WarmRefusal.FAILED)
        return True

    def _room(self, step: SchedulerOutput) -> int:
        """Return how many tokens a chunk may have in this step."""
        if len(step.requests) >= self._max_num_seqs:
            return 0
        left = self._config.max_num_batched_tokens - sum(part.num_new_tokens for part in step.requests)
        if self._config.prefill_chunk:
            left = min(left, max(self._config.prefill_chunk, self._cache.config.block_size))
        return left

    def _schedule(self, warm_up: _WarmUp, step: SchedulerOutput, num_ready: int, room: int) -> bool:
        """Give a chunk its blocks and its place in the step; False: there is no room for it beside the others."""
        block_size = self._cache.config.block_size
        stop = min(warm_up.num_tokens, num_ready + room // block_size * block_size)
        with self._cache.match(_head(warm_up.prompt, stop, block_size)) as match:
            if match.num_pending_tokens:
                return False  # a request computes it right now
            allocation = self._cache.admit(match, max_new_tokens=0)
        if allocation is None:
            return False
        start = allocation.num_cached_tokens
        self._chunk = _Chunk(allocation.table, stop - start)
        if self._has_run:
            step.ended.append(REQUEST_ID)
        self._has_run = True
        step.copies.extend(allocation.copies)
        step.requests.append(
            ScheduledRequest(
                request_id=REQUEST_ID,
                token_ids=warm_up.prompt.token_ids[start:stop],
                num_computed_tokens=start,
                block_ids=allocation.table.block_ids,
                sampling=_NO_SAMPLING,
                seed=0,
                sample=False,
            )
        )
        return True

    def _end(self, warm_up: _WarmUp, refusal: WarmRefusal | None) -> None:
        self._replies.append(Reply(warm_up.call_id, Warmed(self._cache.num_ready_tokens(warm_up.prompt), refusal)))


def _head(prompt: Prompt, num_tokens: int, block_size: int) -> Prompt:
    """Return the first `num_tokens` of a prompt, whole blocks, as a prompt of their own."""
    hashes = prompt.block_hashes[: num_tokens // block_size * HASH_BYTES]
    return Prompt(prompt.token_ids[:num_tokens], hashes, prompt.scopes, prompt.hash_epoch)
