"""A prompt on the wire, and its way into the prefix cache. Loads no torch."""

from __future__ import annotations

import msgspec
import numpy as np

from engine.errors import InvalidRequestError
from prefixcache.interface import Namespace, Prompt, Scope

_NAMESPACE_BYTES = 32
_TOKEN_BYTES = 4


class HashedPrompt(msgspec.Struct, frozen=True):
    """Token ids and their blocks, hashed at the ingress."""

    token_ids: bytes
    """int32, little endian."""
    block_hashes: bytes
    """16 bytes for each full block."""
    scopes: list[tuple[bytes, int]]
    """(namespace, number of blocks), in order."""
    hash_epoch: int


def checked_prompt(message: HashedPrompt, *, vocab_size: int) -> Prompt:
    """Turn it into what the cache is asked with.

    Raises: InvalidRequestError: it has no tokens, no scope, or a token that the model does not have.
    """
    if not message.token_ids or len(message.token_ids) % _TOKEN_BYTES:
        raise InvalidRequestError("the prompt has no tokens", param="messages")
    token_ids = np.frombuffer(message.token_ids, dtype="<i4")
    if not message.scopes or any(len(namespace) != _NAMESPACE_BYTES for namespace, _ in message.scopes):
        raise InvalidRequestError(f"scopes: wanted at least one, each with a namespace of {_NAMESPACE_BYTES} bytes")
    if int(token_ids.min()) < 0 or int(token_ids.max()) >= vocab_size:
        raise InvalidRequestError(f"token ids: wanted 0 to {vocab_size - 1}", param="messages")
    return Prompt(
        token_ids=token_ids,
        block_hashes=message.block_hashes,
        scopes=tuple(Scope(Namespace(namespace), num_blocks) for namespace, num_blocks in message.scopes),
        hash_epoch=message.hash_epoch,
    )
