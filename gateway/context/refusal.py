"""What a chat that does not fit is told: what the policy did, or that it is off."""

from __future__ import annotations

from gateway.context.fitted import Fitted
from gateway.context.history import History
from gateway.context.units import Counter
from gateway.errors import ContextLengthError

_NO_DOCUMENT = 2**31


def still_too_long(error: ContextLengthError, fitted: Fitted, count: Counter) -> ContextLengthError:
    """Tell what was left of a chat, and of what it consists."""
    sent = History(fitted.conversation, count, document_tokens=_NO_DOCUMENT)
    starts = [number for number in range(len(sent.units)) if sent.is_of_user(number)]
    last_turn = sum(sent.sizes[sent.borders[starts[-1] if starts else 0] :])
    text = (
        f"{error}; the context policy is on and left about {fitted.tokens_after} of {fitted.tokens_before} tokens: it "
        f"never cuts system messages and tools, here about {sent.head_tokens}, nor the last turn, which has "
        f"about {last_turn}"
    )
    return ContextLengthError(text, param=error.param)


def could_be_cut(error: ContextLengthError) -> ContextLengthError:
    """Name what would help."""
    text = (
        f"{error}; the context policy, which leaves out what is old, is not on for this request: see --context-policy"
    )
    return ContextLengthError(text, param=error.param)
