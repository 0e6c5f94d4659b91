"""The items of an answer in the shapes of OpenAI's Responses: thoughts, text and calls, whole or while they grow.

An item knows its own events; they are numbered elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from gateway.answer_pieces import Call
from gateway.logprobs import Entry

Json = dict[str, Any]


class Item(Protocol):
    """One item on its way."""

    def opening(self) -> Iterator[Json]:
        """Yield the events that begin it."""
        ...

    def ending(self, status: str) -> Iterator[Json]:
        """Yield the events that end it."""
        ...

    def printed(self, status: str) -> Json:
        """Print all of it that there is."""
        ...


class _Written:
    """What all items have: an id, and a place in the answer."""

    def __init__(self, item_id: str, index: int) -> None:
        self._item_id = item_id
        self._index = index

    def _of_item(self, kind: str, item: Json) -> Json:
        return {"type": f"response.output_item.{kind}", "output_index": self._index, "item": item}

    def _event(self, kind: str, **fields: Any) -> Json:
        place = {"item_id": self._item_id, "output_index": self._index}
        return {"type": f"response.{kind}", **place, **fields}


class _Worded(_Written):
    """An item with one part, which is a text."""

    kind: str
    """Of its part."""

    def __init__(self, item_id: str, index: int, text: str = "") -> None:
        super().__init__(item_id, index)
        self._texts = [text]

    def _of_part(self, kind: str, **fields: Any) -> Json:
        return self._event(kind, content_index=0, **fields)

    def _more(self, text: str, **fields: Any) -> Json:
        self._texts.append(text)
        return self._of_part(f"{self.kind}.delta", delta=text, **fields)


class Reasoning(_Worded):
    """What the model thought."""

    kind = "reasoning_text"

    def more(self, text: str) -> Json:
        """Take more of it, and print that."""
        return self._more(text)

    def opening(self) -> Iterator[Json]:
        """Yield the events that begin it."""
        yield self._of_item("added", self._printed("in_progress", []))
        yield self._of_part("content_part.added", part=self._part(""))

    def ending(self, status: str) -> Iterator[Json]:
        """Yield the events that end it."""
        text = "".join(self._texts)
        yield self._of_part(f"{self.kind}.done", text=text)
        yield self._of_part("content_part.done", part=self._part(text))
        yield self._of_item("done", self.printed(status))

    def printed(self, status: str) -> Json:
        """Print all of it that there is."""
        return self._printed(status, [self._part("".join(self._texts))])

    def _part(self, text: str) -> Json:
        return {"type": self.kind, "text": text}

    def _printed(self, status: str, content: list[Json]) -> Json:
        return {"id": self._item_id, "type": "reasoning", "status": status, "summary": [], "content": content}


class Message(_Worded):
    """What the model said."""

    kind = "output_text"

    def __init__(self, item_id: str, index: int, text: str = "", logprobs: Sequence[Entry] | None = None) -> None:
        super().__init__(item_id, index, text)
        self._logprobs = list(logprobs or ())

    def more(self, text: str, logprobs: Sequence[Entry] | None) -> Json:
        """Take more of it, and print that."""
        self._logprobs += logprobs or ()
        return self._more(text, logprobs=logprobs or [])

    def opening(self) -> Iterator[Json]:
        """Yield the events that begin it."""
        yield self._of_item("added", self._printed("in_progress", []))
        yield self._of_part("content_part.added", part=self._part("", []))

    def ending(self, status: str) -> Iterator[Json]:
        """Yield the events that end it."""
        text = "".join(self._texts)
        yield self._of_part(f"{self.kind}.done", text=text, logprobs=self._logprobs)
        yield self._of_part("content_part.done", part=self._part(text, self._logprobs))
        yield self._of_item("done", self.printed(status))

    def printed(self, status: str) -> Json:
        """Print all of it that there is."""
        return self._printed(status, [self._part("".join(self._texts), self._logprobs)])

    def _part(self, text: str, logprobs: Sequence[Entry]) -> Json:
        return {"type": self.kind, "text": text, "annotations": [], "logprobs": logprobs}

    def _printed(self, status: str, content: list[Json]) -> Json:
        return {"id": self._item_id, "type": "message", "status": status, "role": "assistant", "content": content}


class FunctionCall(_Written):
    """A call of a function of the client's."""

    def __init__(self, item_id: str, index: int, call: Call) -> None:
        super().__init__(item_id, index)
        self._call = call
        self._fragments = [call.arguments]

    def more(self, fragment: str) -> Json:
        """Take more of its arguments, and print that."""
        self._fragments.append(fragment)
        return self._event("function_call_arguments.delta", delta=fragment)

    def opening(self) -> Iterator[Json]:
        """Yield the event that begins it."""
        yield self._of_item("added", self.printed("in_progress"))

    def ending(self, status: str) -> Iterator[Json]:
        """Yield the events that end it."""
        arguments = "".join(self._fragments)
        yield self._event("function_call_arguments.done", name=self._call.name, arguments=arguments)
        yield self._of_item("done", self.printed(status))

    def printed(self, status: str) -> Json:
        """Print all of it that there is."""
        return {
            "id": self._item_id,
            "type": "function_call",
            "status": status,
            "call_id": self._call.call_id,
            "name": self._call.name,
            "arguments": "".join(self._fragments),
        }
