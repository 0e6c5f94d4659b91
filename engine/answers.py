"""The requests that have not ended, by their own key and by the client's id. Plain bookkeeping."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from engine.request import Request


class Answers:
    """All answers that wait, run or are still to fork."""

    def __init__(self) -> None:
        self._by_key: dict[str, Request] = {}
        self._by_id: dict[str, list[Request]] = {}

    def __iter__(self) -> Iterator[Request]:
        return iter(self._by_key.values())

    def add(self, answers: Sequence[Request]) -> None:
        """Enter the answers of one client's request. Raises: ValueError: its id is in use."""
        request_id = answers[0].request_id
        if request_id in self._by_id or any(answer.key in self._by_key for answer in answers):
            raise ValueError(f"request_id: {request_id!r} is in use")
        self._by_id[request_id] = list(answers)
        self._by_key.update((answer.key, answer) for answer in answers)

    def find(self, key: str) -> Request | None:
        """Return one answer."""
        return self._by_key.get(key)

    def of(self, request_id: str) -> list[Request]:
        """Return those of a client's request that have not ended."""
        return list(self._by_id.get(request_id, ()))

    def remove(self, answer: Request) -> None:
        """One has ended."""
        del self._by_key[answer.key]
        others = self._by_id[answer.request_id]
        others.remove(answer)
        if not others:
            del self._by_id[answer.request_id]
