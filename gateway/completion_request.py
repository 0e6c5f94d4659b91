"""The body of `POST /v1/completions`: one prompt as a text or as tokens, and how to go on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gateway import checks
from gateway.chat_request import ChatRequest, json_object, request_of
from gateway.conversation import Conversation
from gateway.errors import InvalidRequestError
from gateway.explain.request import DiagnosticsRequest
from gateway.plain_prompt import check_token_ids
from gateway.tokenizer import Tokenizer

DEFAULT_MAX_TOKENS = 16
"""OpenAI's, at this endpoint alone."""

_OPTIONS = frozenset(
    {
        "model",
        "max_tokens",
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "seed",
        "stop",
        "stream",
        "stream_options",
        "ignore_eos",
        "presence_penalty",
        "frequency_penalty",
        "repetition_penalty",
        "logit_bias",
        "diagnostics",
        "prompt_cache_options",
        "response_format",
        "structured_outputs",
    }
)
"""Fields that mean what a chat means by them."""
_OWN = frozenset({"prompt", "echo", "add_special_tokens", "n", "best_of", "suffix", "logprobs"})


@dataclass(frozen=True, slots=True)
class CompletionRequest:
    """What a client asked for; every value is in its bounds."""

    prompt: str | list[int]
    echo: bool
    """Whether the answer begins with the prompt."""
    add_special_tokens: bool
    """Whether a text gets what the model's texts begin with."""
    options: ChatRequest
    """The rest; nothing is said in it."""
    unknown_fields: tuple[str, ...]

    @property
    def model(self) -> str:
        """The one that is asked for."""
        return self.options.model

    @property
    def stream(self) -> bool:
        """Whether the answer comes in pieces."""
        return self.options.stream

    @property
    def stops(self) -> tuple[str, ...]:
        """Strings that end the answer."""
        return self.options.stops

    @property
    def diagnostics(self) -> DiagnosticsRequest | None:
        """What to tell about the cache."""
        return self.options.diagnostics


def parse_completion_request(body: bytes, tokenizer: Tokenizer) -> CompletionRequest:
    """Check a body.

    Raises: InvalidRequestError: what is wrong first.
    """
    fields = json_object(body)
    _refuse_unsupported(fields)
    given = {name: value for name, value in fields.items() if name in _OPTIONS}
    options = request_of(
        {"max_tokens": DEFAULT_MAX_TOKENS, **given}, lambda _: Conversation(()), num_body_bytes=len(body)
    )
    others = tuple(name for name in fields if name not in _OPTIONS | _OWN)
    return CompletionRequest(
        prompt=_prompt(fields, tokenizer),
        echo=_flag(fields, "echo", default=False),
        add_special_tokens=_flag(fields, "add_special_tokens", default=True),
        options=options,
        unknown_fields=options.unknown_fields + others,
    )


def _prompt(fields: Mapping[str, Any], tokenizer: Tokenizer) -> str | list[int]:
    """Read one prompt, also where it is the only one in a list."""
    field, value = "prompt", fields.get("prompt")
    if isinstance(value, list) and value and isinstance(value[0], str | list):
        if len(value) > 1:
            raise InvalidRequestError(f"prompt: got {len(value)} prompts, wanted one a request", param="prompt")
        field, value = "prompt[0]", value[0]
    if not isinstance(value, str | list):
        checks.refuse(field, value, "a string or an array of tokens")
    if not value:
        raise InvalidRequestError(f"{field}: got an empty prompt, wanted one to go on from", param=field)
    return value if isinstance(value, str) else check_token_ids(field, value, tokenizer)


def _refuse_unsupported(fields: Mapping[str, Any]) -> None:
    for name in ("n", "best_of"):
        if name in fields:
            checks.integer(name, fields[name], low=1, high=1)
    if fields.get("suffix"):
        checks.refuse("suffix", fields["suffix"], "it left out: this server does not fill in")
    if "logprobs" in fields and fields["logprobs"] is not False:
        checks.refuse("logprobs", fields["logprobs"], "it left out: this server gives none here")


def _flag(fields: Mapping[str, Any], name: str, *, default: bool) -> bool:
    return checks.boolean(name, fields[name]) if name in fields else default
