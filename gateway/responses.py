"""`POST /v1/responses`, as OpenAI has it, but that nothing is stored: each request brings its whole conversation."""

from __future__ import annotations

from gateway.auth import Identity
from gateway.backends.base import ModelInfo
from gateway.errors import InvalidRequestError
from gateway.field_names import in_own_words
from gateway.ingress import Ingress
from gateway.prepared import PreparedPrompt
from gateway.responses_request import ResponsesRequest, parse_responses_request
from gateway.responses_wire import ResponsesWire
from gateway.wire import AnswerHead

PATH = "/v1/responses"


class Responses:
    """The endpoint."""

    name = "responses"
    route = PATH
    id_prefix = "resp_"

    def parse(self, body: bytes) -> ResponsesRequest:
        """Check a body."""
        return parse_responses_request(body)

    async def prepare(
        self, ingress: Ingress, request_id: str, request: ResponsesRequest, identity: Identity, model: ModelInfo
    ) -> PreparedPrompt:
        """Normalize, render and tokenize."""
        try:
            return await ingress.prepare(request_id, request.chat, route=PATH, identity=identity, model=model)
        except InvalidRequestError as error:
            raise in_own_words(error, {"messages": "input"}) from error

    def wire(self, request: ResponsesRequest, head: AnswerHead) -> ResponsesWire:
        """Begin to print an answer."""
        return ResponsesWire(head, request.echo)
