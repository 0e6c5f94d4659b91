"""From the bytes of a chat to a request for the engine: check, normalize, render, tokenize, fit, hash.

Pure but for the clock that a template may read; long prompts take the same way in a thread.
"""

from __future__ import annotations

from dataclasses import dataclass

from gateway.auth import Identity
from gateway.backends.base import GenerationRequest, ModelInfo, Sampling
from gateway.chat_request import ChatRequest, parse_chat_request
from gateway.errors import ContextLengthError, InvalidRequestError
from gateway.normalize.registry import RuleRegistry
from gateway.prefix import PrefixHasher
from gateway.rendering import PromptRenderer
from gateway.threads import PromptThreads


@dataclass(frozen=True, slots=True)
class PreparedPrompt:
    """A request for the engine, and what was done to the prompt on the way."""

    request: GenerationRequest
    fired_rules: tuple[str, ...]


class Ingress:
    """Prepares prompts for one served model."""

    def __init__(
        self, rules: RuleRegistry, renderer: PromptRenderer, hasher: PrefixHasher, threads: PromptThreads
    ) -> None:
        self._rules = rules
        self._renderer = renderer
        self._hasher = hasher
        self._threads = threads

    async def parse(self, body: bytes) -> ChatRequest:
        """Check a body.

        Raises: InvalidRequestError: what is wrong first.
        """
        return await self._threads.run(len(body), parse_chat_request, body)

    async def prepare(
        self, request_id: str, chat: ChatRequest, *, identity: Identity, model: ModelInfo
    ) -> PreparedPrompt:
        """Prepare one chat.

        Raises: InvalidRequestError: the template refuses it; ContextLengthError: it does not fit.
        """
        self._renderer.check(chat.conversation)
        return await self._threads.run(chat.num_body_bytes, self._prepare, request_id, chat, identity, model)

    def _prepare(self, request_id: str, chat: ChatRequest, identity: Identity, model: ModelInfo) -> PreparedPrompt:
        normalized = self._rules.normalize(chat.conversation)
        token_ids = self._renderer.token_ids(normalized.conversation, max_model_len=model.max_model_len)
        if not len(token_ids):
            raise InvalidRequestError(
                "messages: the model's chat template made an empty prompt of them", param="messages"
            )
        sampling = Sampling(
            max_tokens=_fit(len(token_ids), chat, model.max_model_len),
            temperature=chat.temperature,
            top_p=chat.top_p,
            top_k=chat.top_k,
            seed=chat.seed,
            ignore_eos=chat.ignore_eos,
        )
        request = self._hasher.request(request_id, token_ids, sampling, identity=identity, model=model)
        return PreparedPrompt(request, normalized.fired)


def _fit(num_prompt_tokens: int, chat: ChatRequest, max_model_len: int) -> int:
    """Give the number of tokens that may be generated."""
    room = max_model_len - num_prompt_tokens
    if room < 1:
        raise ContextLengthError(
            f"messages: got a prompt of {num_prompt_tokens} tokens, wanted at most {max_model_len - 1}: "
            f"the model takes {max_model_len} tokens, prompt and answer together",
            param="messages",
        )
    if chat.max_tokens is None:
        return room
    if chat.max_tokens > room:
        raise ContextLengthError(
            f"{chat.max_tokens_field}: got {chat.max_tokens}, wanted at most {room}: the prompt has "
            f"{num_prompt_tokens} tokens and the model takes {max_model_len}, prompt and answer together",
            param=chat.max_tokens_field,
        )
    return chat.max_tokens
