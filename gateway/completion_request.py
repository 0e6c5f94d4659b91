"""The body of `POST /v1/completions`: prompts as texts or as tokens, and how to go on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from gateway import checks
from gateway.chat_request import ChatRequest, json_object, request_of
from gateway.conversation import Conversation
from gateway.errors import InvalidRequestError
from gateway.explain.request import DiagnosticsRequest
from gateway.plain_prompt import check_token_ids
from gateway.sampling_fields import MAX_ANSWERS, MAX_TOP_LOGPROBS
from gateway.tokenizer import Tokenizer

DEFAULT_MAX_TOKENS = 16
"""OpenAI's, at this endpoint alone."""

Prompt = str | list[int]

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
        "n",
        "prompt_logprobs",
        "cache_salt",
        "diagnostics",
        "prompt_cache_options",
        "response_format",
        "structured_outputs",
    }
)
"""Fields that mean what a chat means by them."""
_OWN = frozenset({"prompt", "echo", "add_special_tokens", "best_of", "suffix", "logprobs", "user"})


@dataclass(frozen=True, slots=True)
class CompletionRequest:
    """What a client asked for; every value is in its bounds."""

    prompts: list[Prompt]
    """At least one."""
    echo: bool
    """Whether each answer begins with its prompt."""
    add_special_tokens: bool
    """Whether a text gets what the model's texts begin with."""
    num_prompt_logprobs: int | None
    """Of vLLM's field; None: not asked for. With `echo` the prompts are part of what `logprobs` tells."""
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
    given = {name: value for name, value in fields.items() if name in _OPTIONS}
    num_logprobs = _num_logprobs(fields)
    echo = _flag(fields, "echo", default=False)
    told = {} if num_logprobs is None else {"logprobs": True, "top_logprobs": num_logprobs}
    options = request_of(
        {"max_tokens": DEFAULT_MAX_TOKENS, **given, **told},
        lambda _: Conversation(()),
        num_body_bytes=len(body),
        scores_prompt=echo and num_logprobs is not None,
    )
    _refuse_unsupported(fields, options.n)
    prompts = _prompts(fields, tokenizer)
    if len(prompts) * options.n > MAX_ANSWERS:
        raise InvalidRequestError(
            f"prompt: got {len(prompts)} prompts with n {options.n}, wanted at most {MAX_ANSWERS} answers",
            param="prompt",
        )
    wanted = [num for num in (options.num_prompt_logprobs, num_logprobs if echo else None) if num is not None]
    others = tuple(name for name in fields if name not in _OPTIONS | _OWN)
    return CompletionRequest(
        prompts=prompts,
        echo=echo,
        add_special_tokens=_flag(fields, "add_special_tokens", default=True),
        num_prompt_logprobs=options.num_prompt_logprobs,
        options=replace(options, num_prompt_logprobs=max(wanted, default=None)),
        unknown_fields=options.unknown_fields + others,
    )


def _prompts(fields: Mapping[str, Any], tokenizer: Tokenizer) -> list[Prompt]:
    """Read one prompt, or several in a list."""
    value = fields.get("prompt")
    if isinstance(value, list) and value and isinstance(value[0], str | list):
        checks.sequence("prompt", value, most=MAX_ANSWERS)
        return [_prompt(f"prompt[{number}]", entry, tokenizer) for number, entry in enumerate(value)]
    return [_prompt("prompt", value, tokenizer)]


def _prompt(field: str, value: object, tokenizer: Tokenizer) -> Prompt:
    if not isinstance(value, str | list):
        checks.refuse(field, value, "a string or an array of tokens")
    if not value:
        raise InvalidRequestError(f"{field}: got an empty prompt, wanted one to go on from", param=field)
    return value if isinstance(value, str) else check_token_ids(field, value, tokenizer)


def _num_logprobs(fields: Mapping[str, Any]) -> int | None:
    """Read a number, unlike a chat's flag; false is how some clients leave it out."""
    value = fields.get("logprobs", False)
    return None if value is False else checks.integer("logprobs", value, low=0, high=MAX_TOP_LOGPROBS)


def _refuse_unsupported(fields: Mapping[str, Any], n: int) -> None:
    if "best_of" in fields and checks.integer("best_of", fields["best_of"], low=1, high=MAX_ANSWERS) != n:
        checks.refuse("best_of", fields["best_of"], f"n, which is {n}: this server returns every answer that it makes")
    if fields.get("suffix"):
        checks.refuse("suffix", fields["suffix"], "it left out: this server does not fill in")


def _flag(fields: Mapping[str, Any], name: str, *, default: bool) -> bool:
    return checks.boolean(name, fields[name]) if name in fields else default
