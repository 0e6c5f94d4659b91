"""`POST /v1/completions`, as OpenAI had it: a prompt that no template writes in and no rule changes."""

from __future__ import annotations

from functools import partial

from gateway.auth import Identity
from gateway.backends.base import ModelInfo
from gateway.completion_request import CompletionRequest, parse_completion_request
from gateway.completion_wire import CompletionWire
from gateway.ingress import Ingress, PreparedPrompt
from gateway.plain_prompt import encode_text
from gateway.tokenizer import TokenArray, Tokenizer, token_array
from gateway.wire import AnswerHead

PATH = "/v1/completions"


class Completions:
    """The endpoint."""

    name = "completions"
    route = PATH
    id_prefix = "cmpl-"

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def parse(self, body: bytes) -> CompletionRequest:
        """Check a body."""
        return parse_completion_request(body, self._tokenizer)

    async def prepare(
        self, ingress: Ingress, request_id: str, request: CompletionRequest, identity: Identity, model: ModelInfo
    ) -> PreparedPrompt:
        """Tokenize."""
        tokenize = partial(self._tokenize, request, model.max_model_len)
        return await ingress.prepare_plain(request_id, tokenize, request.options, identity=identity, model=model)

    def wire(self, request: CompletionRequest, head: AnswerHead) -> CompletionWire:
        """Begin to print an answer."""
        echo = self._text(request.prompt) if request.echo else ""
        return CompletionWire(head, echo=echo, include_usage=request.options.include_usage)

    def _tokenize(self, request: CompletionRequest, max_model_len: int) -> TokenArray:
        if not isinstance(request.prompt, str):
            return token_array(request.prompt)
        return encode_text(
            request.prompt,
            self._tokenizer,
            add_special_tokens=request.add_special_tokens,
            max_model_len=max_model_len,
        )

    def _text(self, prompt: str | list[int]) -> str:
        return prompt if isinstance(prompt, str) else self._tokenizer.decode(prompt)
