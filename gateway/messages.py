"""`POST /v1/messages` and `POST /v1/messages/count_tokens`, as Anthropic has them."""

from __future__ import annotations

from typing import Any

from gateway.auth import Identity
from gateway.backends.base import ModelInfo
from gateway.chat_request import ChatRequest
from gateway.ingress import Ingress
from gateway.messages_request import parse_count_request, parse_messages_request
from gateway.messages_wire import MessagesWire
from gateway.prepared import PreparedPrompt
from gateway.serving import Services
from gateway.wire import AnswerHead

PATH = "/v1/messages"
COUNT_PATH = f"{PATH}/count_tokens"


class Messages:
    """The endpoint that answers."""

    name = "messages"
    route = PATH
    id_prefix = "msg_"

    def parse(self, body: bytes) -> ChatRequest:
        """Check a body."""
        return parse_messages_request(body)

    async def prepare(
        self, ingress: Ingress, request_id: str, request: ChatRequest, identity: Identity, model: ModelInfo
    ) -> PreparedPrompt:
        """Normalize, render and tokenize."""
        return await ingress.prepare(request_id, request, route=PATH, identity=identity, model=model)

    def wire(self, request: ChatRequest, head: AnswerHead) -> MessagesWire:
        """Begin to print an answer."""
        return MessagesWire(head, shows_thoughts=request.shows_thoughts)


class TokenCount:
    """The endpoint that counts what a message would be sent with."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def __call__(self, body: bytes, identity: Identity) -> dict[str, Any]:
        """Count one body."""
        services = self._services
        asked = await services.threads.run(len(body), parse_count_request, body)
        services.check_model(asked.model, identity)
        sent = await services.ingress.sent_tokens(
            asked.conversation,
            len(body),
            route=PATH,
            identity=identity,
            model=services.backend.model_info(),
            context=asked.context,
        )
        counted: dict[str, Any] = {"input_tokens": len(sent.token_ids)}
        if sent.num_original is not None:
            counted["context_management"] = {"original_input_tokens": sent.num_original}
        return counted
