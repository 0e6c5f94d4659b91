"""The token blocks of a prompt, hashed at the ingress, so that routing and explaining can use them too.

Decides in whose namespace a block lives. The scope comes from who is authenticated, never from the body.
"""

from __future__ import annotations

from gateway.auth import Identity
from gateway.backends.base import GenerationRequest, ModelInfo, Sampling
from gateway.backends.control import HashedPrompt
from gateway.tokenizer import TokenArray
from prefixcache.hashing import hash_blocks, namespace
from prefixcache.interface import Namespace, Scope

PUBLIC_SCOPE = "public"
_MAX_NAMESPACES = 4096


def namespace_of(scope: str, model: ModelInfo) -> Namespace:
    """Return where the blocks live that a scope (`PUBLIC_SCOPE`, or of an identity) sees of the running model."""
    return Namespace(namespace(model.namespace_fields, scope=scope))


class PrefixHasher:
    """Makes generation requests out of token ids."""

    def __init__(self) -> None:
        self._namespaces: dict[tuple[int, str], Namespace] = {}

    def request(
        self,
        request_id: str,
        token_ids: TokenArray,
        sampling: Sampling,
        *,
        identity: Identity,
        model: ModelInfo,
        num_public_tokens: int = 0,
    ) -> GenerationRequest:
        """Hash a prompt for the running model.

        Args:
            request_id: unique for the life of the engine.
            token_ids: [num_prompt_tokens], int32.
            sampling: checked and complete.
            identity: who asks.
            model: names the hash epoch, and all that changes KV bytes.
            num_public_tokens: leading ones that everybody may see: those of a prompt registered as public.
        """
        prompt = self.prompt(token_ids, identity=identity, model=model, num_public_tokens=num_public_tokens)
        return GenerationRequest(
            request_id=request_id,
            token_ids=prompt.token_ids,
            block_hashes=prompt.block_hashes,
            scopes=prompt.scopes,
            hash_epoch=prompt.hash_epoch,
            sampling=sampling,
            tenant=identity.tenant,
        )

    def prompt(
        self, token_ids: TokenArray, *, identity: Identity, model: ModelInfo, num_public_tokens: int = 0
    ) -> HashedPrompt:
        """Hash a prompt that is not to be answered now: to warm, pin or explain it."""
        num_blocks, num_public_blocks = (num // model.block_size for num in (len(token_ids), num_public_tokens))
        public, own = (
            Scope(self._namespace(PUBLIC_SCOPE, model), num_public_blocks),  # a block with one more token is private
            Scope(self._namespace(identity.scope, model), num_blocks - num_public_blocks),
        )
        scopes = (public, own) if num_public_blocks else (own,)
        return HashedPrompt(
            token_ids=token_ids,
            block_hashes=hash_blocks(token_ids, block_size=model.block_size, scopes=scopes, seed=model.hash_seed),
            scopes=[(scope.namespace, scope.num_blocks) for scope in scopes],
            hash_epoch=model.hash_epoch,
        )

    def _namespace(self, scope: str, model: ModelInfo) -> Namespace:
        key = (model.hash_epoch, scope)
        found = self._namespaces.get(key)
        if found is None:
            if len(self._namespaces) >= _MAX_NAMESPACES:
                self._namespaces.clear()
            found = namespace_of(scope, model)
            self._namespaces[key] = found
        return found
