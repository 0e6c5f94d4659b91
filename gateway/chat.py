"""`POST /v1/chat/completions`, as OpenAI has it."""

from __future__ import annotations

from gateway.auth import Identity
from gateway.backends.base import ModelInfo
from gateway.chat_request import ChatRequest, parse_chat_request
from gateway.chat_wire import ChatWire
from gateway.ingress import Ingress
from gateway.prepared import PreparedPrompt
from gateway.wire import AnswerHead

PATH = "/v1/chat/completions"


class ChatCompletions:
    """The endpoint: a body in, an answer's bytes out; `gateway.serving` does what is between."""

    name = "chat"
    route = PATH
    id_prefix = "chatcmpl-"

    def parse(self, body: bytes) -> ChatRequest:
        """Check a body."""
        return parse_chat_request(body)

    async def prepare(
        self, ingress: Ingress, request_id: str, request: ChatRequest, identity: Identity, model: ModelInfo
    ) -> PreparedPrompt:
        """Normalize, render and tokenize."""
        return await ingress.prepare(request_id, request, route=PATH, identity=identity, model=model)

    def wire(self, request: ChatRequest, head: AnswerHead) -> ChatWire:
        """Begin to print an answer."""
        return ChatWire(head, include_usage=request.include_usage)
