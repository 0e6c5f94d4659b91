"""`POST /tokenize` and `POST /detokenize`, in vLLM's shapes.

A chat gets the tokens with which it would be sent to the engine, normalized and with earlier answers in place.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from gateway import chat, checks
from gateway.auth import Identity
from gateway.chat_request import conversation_of, json_object
from gateway.errors import InvalidRequestError
from gateway.plain_prompt import check_token_ids, encode_text
from gateway.serving import Services
from gateway.tokenizer import TokenArray


class TokenEndpoints:
    """Both of them."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def tokenize(self, body: bytes, identity: Identity) -> dict[str, Any]:
        """Give the tokens of a text (`prompt`) or of a chat (`messages`)."""
        fields = await self._fields(body, identity)
        if ("prompt" in fields) == ("messages" in fields):
            raise InvalidRequestError("prompt: wanted either prompt or messages", param="prompt")
        with_names = _flag(fields, "return_token_strs", default=False)
        max_model_len = self._services.backend.model_info().max_model_len
        if "prompt" in fields:
            token_ids = await self._of_text(fields)
        else:
            token_ids = await self._of_chat(fields, len(body), identity)
        ids = token_ids.tolist()
        names = self._services.tokenizer.names(ids) if with_names else None
        return {"count": len(ids), "max_model_len": max_model_len, "tokens": ids, "token_strs": names}

    async def detokenize(self, body: bytes, identity: Identity) -> dict[str, Any]:
        """Give the text of tokens, special ones too."""
        fields = await self._fields(body, identity)
        if "tokens" not in fields:
            raise InvalidRequestError("tokens: missing, wanted an array of tokens", param="tokens")
        tokens, threads = fields["tokens"], self._services.threads
        return {"prompt": await threads.run(len(body), self._decoded, tokens, num_new_chars=len(body))}

    def _decoded(self, value: object) -> str:
        tokenizer = self._services.tokenizer
        return tokenizer.decode(check_token_ids("tokens", value, tokenizer))

    async def _fields(self, body: bytes, identity: Identity) -> dict[str, Any]:
        fields = await self._services.threads.run(len(body), json_object, body)
        if "model" in fields:
            self._services.check_model(checks.text("model", fields["model"]), identity)
        return fields

    async def _of_text(self, fields: Mapping[str, Any]) -> TokenArray:
        text = checks.text("prompt", fields["prompt"])
        opens = _flag(fields, "add_special_tokens", default=True)
        encode = partial(encode_text, text, self._services.tokenizer, add_special_tokens=opens)
        return await self._services.threads.run(len(text), encode, num_new_chars=len(text))

    async def _of_chat(self, fields: dict[str, Any], num_bytes: int, identity: Identity) -> TokenArray:
        if not _flag(fields, "add_generation_prompt", default=True):
            checks.refuse("add_generation_prompt", False, "true: chats are printed as they are sent to be answered")
        if _flag(fields, "add_special_tokens", default=False):
            checks.refuse("add_special_tokens", True, "false: the chat template writes special tokens itself")
        services = self._services
        sent = await services.ingress.sent_tokens(
            conversation_of(fields), num_bytes, route=chat.PATH, identity=identity, model=services.backend.model_info()
        )
        return sent.token_ids


def _flag(fields: Mapping[str, Any], name: str, *, default: bool) -> bool:
    return checks.boolean(name, fields[name]) if name in fields else default
