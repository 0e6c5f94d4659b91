"""Renders, tokenizes and hashes what upstreams are sent, predicts what they have cached of it, and remembers why no more.

An upstream's cache is common to all tenants, so the prompts of all are in one estimate of it.
"""

from __future__ import annotations

import logging
import os
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import orjson

from gateway.auth import Identity
from gateway.backends.base import BackendUnavailableError, ModelInfo
from gateway.backends.control import ExplainedRequest, HashedPrompt
from gateway.conversation import Conversation
from gateway.errors import GatewayError
from gateway.rendering import PromptRenderer, RenderedPrompt, WrittenPrompt
from gateway.threads import PromptThreads
from gateway.upstream.estimate import EstimatedCache, Prediction, corrected
from prefixcache.hashing import hash_blocks, namespace
from prefixcache.interface import PrefixCacheConfig, Scope

logger = logging.getLogger(__name__)

BLOCK_SIZE = 16
"""Tokens of a block, as vLLM's by default; llama.cpp and SGLang reuse single tokens, and so up to 15 more."""
NUM_BLOCKS = 32_768
"""Of each upstream: 524,288 tokens, in at most some 20 MB."""
MAX_EXPLANATIONS = 4096


def upstream_model(num_upstreams: int) -> ModelInfo:
    """Describe the upstreams as if they were one engine: chats with the same head go to the same one."""
    cache = _config(num_upstreams * NUM_BLOCKS, hash_seed=int.from_bytes(os.urandom(8)))
    return ModelInfo(
        max_model_len=NUM_BLOCKS * BLOCK_SIZE,
        block_size=BLOCK_SIZE,
        hash_seed=cache.hash_seed,
        hash_epoch=cache.hash_epoch,
        namespace_fields={},
        eos_token_ids=frozenset(),
        cache=cache,
    )


@dataclass(frozen=True, slots=True)
class Foreseen:
    """A prompt on its way."""

    rendered: RenderedPrompt
    prediction: Prediction
    upstream: str
    """For which it was made."""
    caches: Mapping[str, EstimatedCache]

    def at(self, upstream: str) -> Foreseen:
        """Predict for the upstream that took the prompt in the end."""
        if upstream == self.upstream:
            return self
        return replace(self, prediction=self.caches[upstream].predict(self.prediction.prompt), upstream=upstream)


class Foresight:
    """For all upstreams of a gateway.

    Args:
        model: see `upstream_model`.
        renderer: with the tokenizer and the chat template of the model that they serve.
        threads: where long prompts are tokenized.
        upstreams: their names.
    """

    def __init__(
        self, model: ModelInfo, renderer: PromptRenderer, threads: PromptThreads, upstreams: Sequence[str]
    ) -> None:
        self._model = model
        self._renderer = renderer
        self._threads = threads
        config = _config(NUM_BLOCKS, hash_seed=model.hash_seed)
        self.caches = {name: EstimatedCache(config) for name in upstreams}
        self._explained: OrderedDict[str, ExplainedRequest] = OrderedDict()

    def model_info(self) -> ModelInfo:
        """Describe the upstreams as if they were one engine."""
        return self._model

    def hash_prompt(self, conversation: Conversation, identity: Identity, model: ModelInfo) -> HashedPrompt:
        """Render, tokenize and hash a conversation as the upstreams would.

        Raises: GatewayError: it cannot be rendered, or is far too long.
        """
        self._renderer.check(conversation)
        rendered = self._renderer.render(conversation, tenant=identity.tenant, max_model_len=model.max_model_len)
        return self._hashed(rendered, conversation)

    async def look(
        self, conversation: Conversation, num_bytes: int, identity: Identity, upstream: str
    ) -> Foreseen | None:
        """Predict what an upstream will reuse of a chat; None: it cannot be told, for the prompt cannot be rendered."""
        try:
            written, num_new = await self._threads.run(num_bytes, self._write, conversation, identity)
            arguments = (written, conversation, identity)
            rendered, prompt = await self._threads.run(num_bytes, self._tokenize, *arguments, num_new_chars=num_new)
        except (GatewayError, BackendUnavailableError):
            return None
        except Exception:  # no chat fails because of what is only a guess
            logger.exception("a prompt could not be rendered")
            return None
        if not len(prompt.token_ids):
            return None
        return Foreseen(rendered, self.caches[upstream].predict(prompt), upstream, self.caches)

    def learn(self, foreseen: Foreseen, completion_id: str, num_reported: int | None, num_prompt: int | None) -> None:
        """Take what became of a chat, and keep the explanation."""
        prediction, cache = foreseen.prediction, self.caches[foreseen.upstream]
        explanation = corrected(prediction.explanation, num_reported, BLOCK_SIZE)
        self._explained[completion_id] = ExplainedRequest(explanation, cache.owner(explanation))
        if len(self._explained) > MAX_EXPLANATIONS:
            self._explained.popitem(last=False)
        cache.learn(prediction, completion_id, num_reported, num_prompt)

    async def explain_request(
        self,
        request_id: str,
        *,
        reveal_other_scopes: bool = False,  # noqa: ARG002 -- there is one scope
    ) -> ExplainedRequest | None:
        """Tell what was cached for an answered chat; None: not known (any more)."""
        return self._explained.get(request_id)

    def _write(self, conversation: Conversation, identity: Identity) -> tuple[WrittenPrompt, int]:
        """Render, and tell how many characters are to be tokenized."""
        self._renderer.check(conversation)
        written = self._renderer.write(conversation, max_model_len=self._model.max_model_len)
        return written, self._renderer.num_new_chars(written, tenant=identity.tenant)

    def _tokenize(
        self, written: WrittenPrompt, conversation: Conversation, identity: Identity
    ) -> tuple[RenderedPrompt, HashedPrompt]:
        rendered = self._renderer.tokenize(written, tenant=identity.tenant)
        return rendered, self._hashed(rendered, conversation)

    def _hashed(self, rendered: RenderedPrompt, conversation: Conversation) -> HashedPrompt:
        token_ids = rendered.token_ids
        model = orjson.dumps(conversation.fields.get("model")).decode()
        scope = Scope(namespace({"model": model}, scope="public"), len(token_ids) // BLOCK_SIZE)
        return HashedPrompt(
            token_ids=token_ids,
            block_hashes=hash_blocks(token_ids, block_size=BLOCK_SIZE, scopes=(scope,), seed=self._model.hash_seed),
            scopes=[(scope.namespace, scope.num_blocks)],
            hash_epoch=self._model.hash_epoch,
        )


def _config(num_blocks: int, *, hash_seed: int) -> PrefixCacheConfig:
    return PrefixCacheConfig(
        num_blocks,
        block_size=BLOCK_SIZE,
        hash_seed=hash_seed,
        max_shared_ratio=1.0,
        growth_reserve=0,
        reuse_partial_blocks=False,
    )
