"""A backend that says what a test writes."""

from __future__ import annotations

from gateway.backends.base import GenerationRequest
from gateway.tokenizer import Tokenizer
from tests.gateway.support.fake_backend import FakeBackend, FakeGeneration
from tests.gateway.support.tiny_model import EOS_ID


class ScriptedBackend(FakeBackend):
    """Answers one text after the other, the last one again and again. For one request at a time."""

    def __init__(self, tokenizer: Tokenizer, *texts: str) -> None:
        super().__init__(max_model_len=8192)
        self._tokenizer = tokenizer
        self.say(*texts)

    def say(self, *texts: str) -> None:
        """Begin a script."""
        self._texts = list(texts)

    async def generate(self, request: GenerationRequest) -> FakeGeneration:
        text = self._texts.pop(0) if len(self._texts) > 1 else self._texts[0]
        self.reply = [*self._tokenizer.encode(text).tolist(), EOS_ID]
        return await super().generate(request)
