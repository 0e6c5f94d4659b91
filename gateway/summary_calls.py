"""The engine writes the summaries of chats that the context policy cuts, each as an answer to the chat as it was sent."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace

import numpy as np

from gateway.answer import Answer
from gateway.answer_pieces import Piece, Text
from gateway.backends.base import Backend, GenerationRequest
from gateway.chat_request import ChatRequest
from gateway.context.summary import Lacks, Summary
from gateway.context.writer import Said, SummaryWriter
from gateway.conversation import Conversation
from gateway.errors import RateLimitError
from gateway.limits.limiter import Limiter, Ticket
from gateway.metrics import GatewayMetrics
from gateway.normalize.memory import TurnMemory
from gateway.prepared import PreparedPrompt
from gateway.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

_SEED = 0
_MAX_ENDING_TOKENS = 32
"""Of what a template writes where an answer begins."""


Prepare = Callable[[ChatRequest], Awaitable[PreparedPrompt]]
"""Renders, tokenizes and hashes as for the request that waits. Raises: GatewayError: it cannot be sent."""


class SummaryCalls:
    """For one gateway.

    Args:
        backend: of the engine.
        tokenizer: of the model.
        limiter: counts what a call takes against the limits of whom it is made for.
        memory: where summaries are kept.
        metrics: where calls are counted.
    """

    def __init__(
        self, backend: Backend, tokenizer: Tokenizer, limiter: Limiter, memory: TurnMemory, metrics: GatewayMetrics
    ) -> None:
        self._backend = backend
        self._tokenizer = tokenizer
        self._limiter = limiter
        self._metrics = metrics
        self._writer = SummaryWriter(memory, metrics.summaries.count_fallback)

    async def write(self, lacks: Lacks, chat: ChatRequest, prepare: Prepare) -> Summary:
        """Give the summary that a chat lacks. The call is paid for where it ends, whatever comes of the request.

        Args:
            lacks: what is to be written.
            chat: the request that waits for it.
            prepare: see `Prepare`.
        """

        async def ask(conversation: Conversation, max_tokens: int) -> Said:
            prepared = await self._prepared(_asking(chat, conversation, max_tokens), prepare)
            ticket = self._limiter.take_aside(prepared.identity, prepared.most_tokens)
            if ticket is None:
                raise RateLimitError(f"it may take {prepared.most_tokens} tokens, and its tenant has fewer left")
            with ticket:
                return await self._written(prepared, ticket)

        return await self._writer.write(lacks, ask)

    async def _written(self, prepared: PreparedPrompt, ticket: Ticket) -> Said:
        started_at = time.monotonic()
        generation = await self._backend.generate(prepared.request)
        admission = generation.admission
        answer = Answer(self._tokenizer, stops=(), reading=prepared.reading, is_whole=True)
        pieces: list[Piece] = []
        try:
            async for batch in generation:
                pieces += answer.push(batch)
                if answer.is_over:
                    break
        finally:
            generation.abort()
            ticket.settle(admission.num_prompt_tokens + answer.num_tokens)
            self._metrics.count_admission(admission)
            self._metrics.generated_tokens.inc(answer.num_tokens)
            self._metrics.summaries.count_call(admission, answer.num_tokens)
        logger.info(
            "summary written",
            extra={
                "id": prepared.request.request_id,
                "prompt": admission.num_prompt_tokens,
                "cached": admission.num_cached_tokens,
                "generated": answer.num_tokens,
                "seconds": round(time.monotonic() - started_at, 3),
            },
        )
        text = "".join(piece.text for piece in pieces if isinstance(piece, Text))
        return Said(text, answer.finish_reason == "length")

    async def _prepared(self, chat: ChatRequest, prepare: Prepare) -> PreparedPrompt:
        """Prepare without thinking where the template lets it be switched off and still writes the same chat."""
        plain = await prepare(chat)
        if plain.reading is None or not plain.reading.form.has_thoughts:
            return plain
        switches = {**(chat.conversation.fields.get("chat_template_kwargs") or {}), "enable_thinking": False}
        fields = {**chat.conversation.fields, "chat_template_kwargs": switches}
        quiet = await prepare(replace(chat, conversation=replace(chat.conversation, fields=fields)))
        return quiet if _differ_at_the_end(plain.request, quiet.request) else plain


def _asking(chat: ChatRequest, conversation: Conversation, max_tokens: int) -> ChatRequest:
    """Ask in the name of a chat: greedy, and with nothing of what it wants of its own answer."""
    return ChatRequest(
        model=chat.model,
        conversation=conversation,
        max_tokens=max_tokens,
        max_tokens_field="max_tokens",
        temperature=0.0,
        top_p=1.0,
        top_k=0,
        seed=_SEED,
        ignore_eos=False,
        stops=(),
        stream=False,
        include_usage=False,
        prompt=None,
        diagnostics=None,
        unknown_fields=(),
        num_body_bytes=chat.num_body_bytes,
        cache_salt=chat.cache_salt,
        is_max_tokens_a_bound=True,
    )


def _differ_at_the_end(plain: GenerationRequest, quiet: GenerationRequest) -> bool:
    """Whether only what stands where the answer begins is another: else the engine has nothing of the chat."""
    num_common = len(plain.token_ids) - _MAX_ENDING_TOKENS
    return bool(np.array_equal(plain.token_ids[:num_common], quiet.token_ids[:num_common]))
