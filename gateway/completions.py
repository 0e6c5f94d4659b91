"""`POST /v1/completions`, as OpenAI had it: prompts that no template writes in and no rule changes."""

from __future__ import annotations

from functools import partial

from gateway.auth import Identity
from gateway.backends.base import ModelInfo
from gateway.completion_request import CompletionRequest, Prompt, parse_completion_request
from gateway.completion_wire import CompletionStyle, CompletionWire, Echo
from gateway.ingress import Ingress
from gateway.plain_prompt import encode_text
from gateway.prepared import PreparedPrompt
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
        return await ingress.prepare_plain(
            request_id, tokenize, request.options, route=PATH, identity=identity, model=model
        )

    def wire(self, request: CompletionRequest, head: AnswerHead) -> CompletionWire:
        """Begin to print the answers."""
        options = request.options
        style = CompletionStyle(
            n=options.n,
            echoes=[self._echo(request, prompt) for prompt in request.prompts] if request.echo else None,
            num_logprobs=options.num_logprobs,
            num_prompt_logprobs=request.num_prompt_logprobs,
            include_usage=options.include_usage,
        )
        return CompletionWire(head, style)

    def _tokenize(self, request: CompletionRequest, max_model_len: int) -> list[TokenArray]:
        several = len(request.prompts) > 1
        return [
            token_array(prompt)
            if isinstance(prompt, list)
            else encode_text(
                prompt,
                self._tokenizer,
                add_special_tokens=request.add_special_tokens,
                max_model_len=max_model_len,
                field=f"prompt[{number}]" if several else "prompt",
            )
            for number, prompt in enumerate(request.prompts)
        ]

    def _echo(self, request: CompletionRequest, prompt: Prompt) -> Echo:
        if isinstance(prompt, list):
            return Echo(self._tokenizer.decode(prompt), 0)
        return Echo(prompt, len(self._tokenizer.opening_ids) if request.add_special_tokens else 0)
