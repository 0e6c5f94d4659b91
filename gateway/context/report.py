"""What the context policy did to one prompt, as responses, the request log and metrics tell it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from gateway.context import clearing, thoughts
from gateway.context.clearing import Cleared
from gateway.context.fitted import Edit, Fitted
from gateway.normalize.rule import Mode

Json = dict[str, Any]

_COUNTED_AS = {clearing.KIND: "cleared_tool_uses", thoughts.KIND: "cleared_thinking_turns"}
"""What Anthropic's API calls the count of an edit that it has, too."""


@dataclass(frozen=True, slots=True)
class ContextReport:
    """Of a prompt for which the policy is on, or in audit mode: then it tells what would have been."""

    mode: Mode
    edits: tuple[Edit, ...]
    """None: the chat is short enough."""
    original_tokens: int
    """Of the prompt without edits; by estimate, where they were made."""
    tokens: int
    """Of the prompt with them; by estimate, where they were not made."""
    is_new_cut: bool
    """Whether it was cut at this very request."""
    seconds: float
    """That the policy took."""

    @classmethod
    def of(cls, mode: Mode, fitted: Fitted, num_prompt_tokens: int, seconds: float) -> ContextReport:
        """Tell of a prompt of so many tokens: the fitted one where the policy is on, else the whole one."""
        saved = fitted.tokens_before - fitted.tokens_after
        original = num_prompt_tokens + saved if mode is Mode.ON else num_prompt_tokens
        tokens = num_prompt_tokens if mode is Mode.ON else max(0, num_prompt_tokens - saved)
        return cls(mode, fitted.edits, original, tokens, fitted.is_new_cut, seconds)

    @classmethod
    def of_whole(cls, num_prompt_tokens: int) -> ContextReport:
        """Tell of a prompt that nothing was left out of yet."""
        return cls(Mode.ON, (), num_prompt_tokens, num_prompt_tokens, is_new_cut=False, seconds=0.0)

    def behind(self, cleared: Cleared, seconds: float) -> ContextReport:
        """Tell also of what was cleared before, as the client asked."""
        return replace(
            self,
            edits=(*cleared.edits, *self.edits),
            original_tokens=self.original_tokens + cleared.num_tokens,
            is_new_cut=self.is_new_cut or cleared.is_new,
            seconds=self.seconds + seconds,
        )

    @property
    def cleared_tokens(self) -> int:
        """How many fewer tokens the prompt has, by estimate."""
        return self.original_tokens - self.tokens

    @property
    def is_applied(self) -> bool:
        """Whether the prompt that was sent is another one than came."""
        return self.mode is Mode.ON and bool(self.edits)

    @property
    def fields(self) -> Json:
        """Give what is added to a response: nothing where nothing was done to the prompt."""
        return {"context_management": self._printed()} if self.mode is Mode.ON else {}

    def in_words(self) -> str:
        """Say what was left out, or would be."""
        edits = ", ".join(f"{edit.kind} ({edit.number})" for edit in self.edits)
        return f"{self.original_tokens} tokens become {self.tokens}: {edits}"

    def recorded(self) -> Json:
        """Give what the request log says."""
        return {"mode": self.mode.value, **self._printed()}

    def _printed(self) -> Json:
        return {
            "applied_edits": [_printed(edit) for edit in self.edits],
            "original_input_tokens": self.original_tokens,
            "input_tokens": self.tokens,
        }


def _printed(edit: Edit) -> Json:
    return {
        "type": edit.kind,
        "count": edit.number,
        **({_COUNTED_AS[edit.kind]: edit.number} if edit.kind in _COUNTED_AS else {}),
        "cleared_input_tokens": edit.cleared_tokens,
        **edit.detail,
    }
