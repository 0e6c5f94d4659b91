"""An upstream with a prefix cache of its own, which reports what it took from there."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from gateway.chat_request import conversation_of
from gateway.model_files import ModelFiles
from gateway.rendering import PromptRenderer
from gateway.template import ChatTemplate
from gateway.tokenizer import Tokenizer
from prefixcache.hashing import namespace
from prefixcache.interface import PrefixCacheConfig, Prompt, Scope
from prefixcache.shadow import ShadowIndex
from tests.gateway.upstream.mock import MockUpstream

BLOCK_SIZE = 8


def renderer_of(files: ModelFiles) -> PromptRenderer:
    return PromptRenderer(ChatTemplate(files.chat_template, special_tokens={}), Tokenizer(files.tokenizer_file))


@dataclass
class CachingUpstream(MockUpstream):
    """Reuses full blocks of 8 tokens, and parts of them, of the same model; holds no more than it has room for."""

    files: ModelFiles | None = None
    num_blocks: int = 4096
    text: str = "so"
    cached: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        assert self.files is not None
        self._renderer = renderer_of(self.files)
        self._cache = ShadowIndex[None](
            PrefixCacheConfig(
                self.num_blocks, block_size=BLOCK_SIZE, max_shared_ratio=1.0, growth_reserve=0, min_partial_tokens=1
            )
        )

    def answer(self, body: bytes) -> Sequence[bytes]:
        fields = json.loads(body)
        token_ids = self._renderer.token_ids(conversation_of(fields))
        scope = Scope(namespace({"model": fields["model"]}, scope="public"), 0)
        hit = self._cache.serve(Prompt(token_ids, b"", (scope,), 0), None)
        self.cached.append(0 if hit is None else hit.num_cached_tokens)
        usage = {"prompt_tokens": len(token_ids), "completion_tokens": 1}
        usage |= {"prompt_tokens_details": {"cached_tokens": self.cached[-1]}}
        said: dict[str, Any] = {"role": "assistant", "content": self.text}
        choice = {"index": 0, "message": said, "finish_reason": "stop"}
        return [json.dumps({"id": f"chatcmpl-{len(self.bodies)}", "choices": [choice], "usage": usage}).encode()]
