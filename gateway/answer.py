"""One answer as text: detokenized, cut at a stop string.

Knows nothing of HTTP; what streams and what answers in one piece both read it, through `gateway.answers`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gateway.answer_pieces import AnswerEnd, Piece, Text, gather
from gateway.backends.base import TokenBatch, TokenLogprobs
from gateway.conversation import Message
from gateway.logprobs import Entry, LogprobQueue
from gateway.normalize.recollection import NextTurn
from gateway.stops import StopMatcher
from gateway.tokenizer import Detokenizer, Tokenizer
from gateway.tools.reading import Reading

_MAX_UNSAID_TOKENS = 16
"""At the end of an answer that was cut: those of a stop string, or of a character that was only begun."""


class Answer:
    """Reads the batches of one answer. `finish_reason` and `num_tokens` are final when it `is_over`.

    Attributes:
        num_tokens: generated so far, the end-of-sequence token among them.
        finish_reason: `stop`, `length` or `tool_calls`.
        stop: the stop string that ended it; None: none did.
        is_over: nothing more of it is wanted.

    Args:
        tokenizer: of the model.
        stops: strings that end the answer.
        next_turn: remembers it; None: it is not to be remembered.
        reading: what is to be found in it beside text; None: nothing.
        is_whole: nobody sees it before its end.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        stops: Sequence[str],
        next_turn: NextTurn | None = None,
        reading: Reading | None = None,
        is_whole: bool = False,
    ) -> None:
        self.num_tokens = 0
        self.finish_reason = "length"
        self.stop: str | None = None
        self.is_over = False
        self._detokenizer = Detokenizer(tokenizer, reading.form.marks if reading else ())
        self._reader = reading.reader(is_whole=is_whole) if reading else None
        self._stops = StopMatcher(stops) if stops else None
        self._tokenizer = tokenizer
        self._next_turn = next_turn
        self._texts: list[str] = []
        self._pieces: list[Piece] = []
        self._token_ids: list[int] = []
        self._is_cut = True
        self._logprobs: LogprobQueue | None = None

    @property
    def end(self) -> AnswerEnd:
        """How it ended, once it has."""
        return AnswerEnd(self.finish_reason, self.stop, self.num_tokens, self._take_logprobs())

    def push(self, batch: TokenBatch) -> list[Piece]:
        """Enter a batch; return what is certain of the answer, and was not before.

        The whole answer is remembered before its last text goes out: a client that has read it may go away or ask again.
        """
        self.num_tokens += len(batch.token_ids)
        text, is_last = self._take(batch)
        if self._logprobs is not None:
            self._logprobs.send(len(text))
        pieces, self.is_over = self._read(text, is_last=is_last)
        if self._next_turn is not None:
            self._texts.append(text)
            self._pieces += pieces
            if self.is_over:
                self._remember(self._next_turn)
        return pieces

    def _read(self, text: str, *, is_last: bool) -> tuple[list[Piece], bool]:
        """Tell thoughts and calls from text. Returns: pieces, and whether they are the last ones."""
        reader = self._reader
        if reader is None:
            return ([Text(text, self._take_logprobs())] if text else []), is_last
        pieces = reader.push(text)
        if is_last:
            pieces += reader.flush()
        is_last = is_last or reader.is_over
        if reader.is_over or (reader.num_calls and is_last and self.finish_reason == "stop" and self.stop is None):
            self.finish_reason = "tool_calls"
        for place, piece in enumerate(pieces):
            if isinstance(piece, Text):
                pieces[place] = Text(piece.text, self._take_logprobs())
                break
        return pieces, is_last

    def _take_logprobs(self) -> list[Entry] | None:
        """Return those of the text since the last call; None: not asked for."""
        return None if self._logprobs is None else self._logprobs.take()

    def _take(self, batch: TokenBatch) -> tuple[str, bool]:
        token_ids = batch.token_ids
        if batch.finish_reason == "stop":
            token_ids = token_ids[:-1]  # the end-of-sequence token
        if self._next_turn is not None:
            self._token_ids += token_ids
        text = (
            self._detokenizer.push(token_ids) if batch.logprobs is None else self._push_each(token_ids, batch.logprobs)
        )
        if batch.finish_reason:
            text += self._detokenizer.flush()
        if self._stops is not None:
            scan = self._stops.push(text)
            if scan.stopped:
                self.finish_reason, self.stop = "stop", scan.stop
                return scan.text, True
            text = scan.text + self._stops.flush() if batch.finish_reason else scan.text
        if batch.finish_reason:
            self.finish_reason = batch.finish_reason
            if self._logprobs is not None:
                self._logprobs.end()
            self._is_cut = batch.finish_reason != "stop"
            return text, True
        return text, False

    def _push_each(self, token_ids: Sequence[int], logprobs: Sequence[TokenLogprobs]) -> str:
        """Detokenize token by token, to know which text is whose."""
        if self._logprobs is None:
            self._logprobs = LogprobQueue(self._tokenizer)
        pieces: list[str] = []
        for token_id, said in zip(token_ids, logprobs, strict=False):  # without the one that ends the sequence
            pieces.append(self._detokenizer.push((token_id,)))
            self._logprobs.push(token_id, said, pieces[-1])
        return "".join(pieces)

    def _remember(self, next_turn: NextTurn) -> None:
        next_turn.remember(_turn_of(self._pieces), self._said_token_ids("".join(self._texts)))

    def _said_token_ids(self, text: str) -> Sequence[int] | None:
        """Drop tokens that the client got no text of."""
        if not self._is_cut:
            return self._token_ids
        for end in range(len(self._token_ids), max(-1, len(self._token_ids) - _MAX_UNSAID_TOKENS), -1):
            if text.startswith(self._tokenizer.decode(self._token_ids[:end])):
                return self._token_ids[:end]
        return None


def _turn_of(pieces: Sequence[Piece]) -> Message:
    """Write what was said as the turn that a client sends back, in its canonical form."""
    answer = gather(pieces, AnswerEnd("stop", None, 0))
    fields: dict[str, Any] = {"reasoning_content": answer.thought} if answer.thought else {}
    if answer.calls:
        fields["tool_calls"] = [
            {"id": call.call_id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in answer.calls
        ]
    return Message("assistant", answer.text or (None if answer.calls else ""), fields)
