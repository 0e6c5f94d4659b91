"""How long an answer may become behind its prompt."""

from __future__ import annotations

from gateway.chat_request import ChatRequest
from gateway.errors import ContextLengthError


def answer_room(num_prompt_tokens: int, chat: ChatRequest, field: str, max_model_len: int) -> int:
    """Give the number of tokens that may be generated.

    Args:
        num_prompt_tokens: that stand before the answer.
        chat: what its client asked for.
        field: where the prompt came from, for errors.
        max_model_len: tokens of prompt and answer together.

    Raises: ContextLengthError: the prompt is too long, or the client asks for more than is left.
    """
    room = max_model_len - num_prompt_tokens
    if room < (chat.max_tokens != 0):  # a prompt that is only scored may take it all
        raise ContextLengthError(
            f"{field}: got a prompt of {num_prompt_tokens} tokens, wanted at most {max_model_len - 1}: "
            f"the model takes {max_model_len} tokens, prompt and answer together",
            param=field,
        )
    if chat.max_tokens is None:
        return room
    if chat.max_tokens > room and not chat.is_max_tokens_a_bound:
        raise ContextLengthError(
            f"{chat.max_tokens_field}: got {chat.max_tokens}, wanted at most {room}: the prompt has "
            f"{num_prompt_tokens} tokens and the model takes {max_model_len}, prompt and answer together",
            param=chat.max_tokens_field,
        )
    return min(chat.max_tokens, room)
