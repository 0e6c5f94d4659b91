"""A plan becomes the conversation that is sent: placeholders, stubs, a summary, and passages where a question needs them.

All texts follow from the history and the plan. Those that take time are remembered by what they follow from.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import Any, Protocol

from gateway.context.history import MESSAGE_TOKENS, Document, History, Place, with_one_text
from gateway.context.placeholders import cleared_result, stub, summary_block
from gateway.context.plan import Plan, Planner
from gateway.context.summary import Summary
from gateway.context.units import Counter, Unit
from gateway.conversation import Content, Conversation, Message, map_texts, text_part, texts_of


class Archive(Protocol):
    """What is not sent any more, ready to be searched."""

    def passages(self, question: str, budget: int) -> str:
        """Print what answers a question best, in at most so many tokens; empty: nothing does."""
        ...


FindArchive = Callable[[bytes, Callable[[], Sequence[tuple[str, str]]]], Archive]
"""Gives the archive of a cut by its name; where it must be made, of documents, each a name and a text in order."""
Summarize = Callable[[Sequence[str], int], str]
"""Tells texts in at most so many tokens."""


class Texts(Protocol):
    """What was derived before, by what it follows from: passages are texts, summaries say who wrote them."""

    def find(self, key: bytes) -> Any:
        """Return what was kept; None: nothing was, or it is forgotten."""
        ...

    def keep(self, key: bytes, value: str | Summary) -> None:
        """Remember it."""
        ...


@dataclass(frozen=True, slots=True)
class Edit:
    """One kind of change to what was sent."""

    kind: str
    """`clear_tool_results`, `stub_documents`, `compress_tool_results`, `summarize` or `passages`."""
    number: int
    """Of results, documents, messages, questions."""
    cleared_tokens: int
    """How many fewer are sent, by estimate; below 0: more."""
    detail: Mapping[str, str] = field(default_factory=dict)
    """What else is told of it, by name."""


@dataclass(frozen=True, slots=True)
class Fitted:
    """A conversation as it is sent."""

    conversation: Conversation
    plan: Plan
    edits: tuple[Edit, ...]
    """In the order in which they were made; none: it is sent as it came, and is the same object."""
    tokens_before: int
    tokens_after: int
    is_new_cut: bool
    """Whether it was cut at this very request: what was sent before does not begin it."""


class Fitter:
    """Carries a plan out.

    Args:
        history: measured.
        planner: of the same history.
        digests: see `Beginnings`.
        count: see `Counter`.
        find_archive: of what is left out.
        summarize: what is left out.
        texts: what was derived before.
    """

    def __init__(
        self,
        history: History,
        planner: Planner,
        digests: Sequence[bytes],
        count: Counter,
        *,
        find_archive: FindArchive,
        summarize: Summarize,
        texts: Texts,
    ) -> None:
        self._history = history
        self._planner = planner
        self._digests = digests
        self._count = count
        self._find_archive = find_archive
        self._summarize = summarize
        self._texts = texts

    def fit(self, plan: Plan, summary: Summary | None = None) -> Fitted:
        """Make what is sent of a history that is planned to its end: what is quoted takes no more than was left out.

        Nor than there is room for. The summary of the last cut is found or made where none is given.
        """
        history = self._history
        before = plan.num_tokens
        if not plan.leaves_out:
            return self._whole(plan)
        sent, edits, room = self._shortened(plan)
        is_turn = _is_summary_a_turn(sent)
        summary = summary or self._summary(plan, room - is_turn * MESSAGE_TOKENS)
        block = summary_block(summary.text) if summary.text else ""
        summary_cost = self._cost(block) + is_turn * MESSAGE_TOKENS if block else 0
        if summary_cost > room:
            block, summary_cost = "", 0
        passages, passages_cost = self._passages(plan, room - summary_cost)
        for index, text in passages.items():
            sent[index] = _begun_with(text, sent[index])
        messages = list(sent.values())
        if block and is_turn:
            messages.insert(0, Message("user", block))
        elif block:
            messages[0] = _begun_with(block, messages[0])
        conversation = replace(history.conversation, messages=(*history.messages[: history.num_head], *messages))
        num_away, away_tokens = self._size_away(plan)
        edits += [
            Edit(
                "summarize", num_away, away_tokens - summary_cost, summary.detail if block or summary.fallback else {}
            ),
            Edit("passages", len(passages), -passages_cost),
        ]
        after = before - sum(edit.cleared_tokens for edit in edits)
        is_new = plan.cut_at == plan.num_units
        made = tuple(edit for edit in edits if edit.number)
        return Fitted(conversation, plan, made, before, after, is_new_cut=is_new)

    def _whole(self, plan: Plan) -> Fitted:
        """Send all units that are planned, with long results shortened."""
        history, before = self._history, plan.num_tokens
        num_messages = history.borders[plan.num_units]
        edit = self._compress(range(num_messages))
        conversation = history.conversation
        if edit.number:
            conversation = replace(conversation, messages=tuple(map(history.sent_first, range(num_messages))))
        elif num_messages < len(history.messages):
            conversation = replace(conversation, messages=history.messages[:num_messages])
        edits = (edit,) if edit.number else ()
        return Fitted(conversation, plan, edits, before, before - edit.cleared_tokens, is_new_cut=False)

    def before_cut(self, plan: Plan) -> Conversation | None:
        """Give the chat as it was sent before the last cut, up to the last answer; None: there was none."""
        before = self._planner.before_cut(plan)
        if before.num_units <= before.num_away:
            return None
        return self.fit(before).conversation

    def lacks_summary(self, plan: Plan) -> bool:
        """Whether a summary of the last cut is wanted and is not remembered."""
        return self.summary_tokens(plan) > 0 and self._texts.find(self.summary_key(plan)) is None

    def summary_key(self, plan: Plan) -> bytes:
        """Name the summary of the last cut; who is to write it is part of the policy, and so of the name."""
        return b"summary" + self._key(plan)

    def summary_tokens(self, plan: Plan) -> int:
        """Tell how long the summary of the last cut may be."""
        if not plan.num_away:
            return 0
        sent, _, room = self._shortened(plan)
        return self._summary_tokens(plan, room - _is_summary_a_turn(sent) * MESSAGE_TOKENS)

    def extract(self, plan: Plan, budget: int) -> str:
        """Quote what says most of the turns that are put away."""
        away = [text for index in self._away(plan) for text in texts_of(self._history.messages[index].content)]
        return self._summarize(away, budget)

    def _shortened(self, plan: Plan) -> tuple[dict[int, Message], list[Edit], int]:
        """Give what is sent without results and documents, by message, the edits, and the tokens that quotes may take."""
        borders = (range(unit.start, unit.start + len(unit.messages)) for unit in self._units(plan))
        sent = {index: self._history.sent_first(index) for index in chain.from_iterable(borders)}
        compressed, cleared, stubbed = self._compress(sent), self._clear(plan, sent), self._stub(plan, sent)
        _, away_tokens = self._size_away(plan)
        freed = cleared.cleared_tokens + stubbed.cleared_tokens + away_tokens  # the same until the next cut
        return sent, [compressed, cleared, stubbed], min(freed, plan.quote_tokens)

    def _units(self, plan: Plan) -> Sequence[Unit]:
        """Give those that are sent."""
        units = self._history.units
        pinned = [] if plan.pinned is None else [units[plan.pinned]]
        return [*pinned, *units[plan.num_away : plan.num_units]]

    def _compress(self, sent: Collection[int]) -> Edit:
        """Tell which of the messages that are sent were shortened from the beginning."""
        shortened = self._history.shortened
        saved = [shortened[index].saved_tokens for index in sent] if self._history.shortens else []
        return Edit("compress_tool_results", sum(map(bool, saved)), sum(saved))

    def _clear(self, plan: Plan, sent: dict[int, Message]) -> Edit:
        number = freed = 0
        for index in sorted(plan.cleared & sent.keys()):
            content = self._history.messages[index].content
            text = "\n".join(texts_of(content))
            instead = cleared_result(self._history.tool_names.get(index, ""), text, self._count(text))
            gain = self._shorten(index, with_one_text(content, instead), sent)
            number += gain > 0
            freed += gain
        return Edit("clear_tool_results", number, freed)

    def _stub(self, plan: Plan, sent: dict[int, Message]) -> Edit:
        number = freed = 0
        for index in sorted({place.message for place in plan.stubbed} & sent.keys() - plan.cleared):
            documents = self._stubbed(plan, index)
            gain = self._shorten(index, self._with_stubs(index, documents), sent)
            number += len(documents) if gain else 0
            freed += gain
        return Edit("stub_documents", number, freed)

    def _with_stubs(self, index: int, documents: Sequence[Document]) -> Content:
        content = self._history.messages[index].content
        if not self._history.shortened[index].text:
            return _without(content, documents)
        text = "\n".join(texts_of(content))
        return with_one_text(content, stub(documents[0].place.document, text, self._count(text)))

    def _shorten(self, index: int, content: Content, sent: dict[int, Message]) -> int:
        """Send another content, unless it takes as much. Returns: the tokens that it takes less."""
        gain = sum(map(self._count, texts_of(sent[index].content))) - sum(map(self._count, texts_of(content)))
        if gain <= 0:
            return 0
        sent[index] = replace(sent[index], content=content)
        return gain

    def _stubbed(self, plan: Plan, index: int) -> list[Document]:
        return [document for document in self._history.documents_of(index) if document.place in plan.stubbed]

    def _passages(self, plan: Plan, room: int) -> tuple[dict[int, str], int]:
        """Find, for each question since the last cut, what of the archive it needs; by message. And what they cost.

        Questions behind take what those before them left: so those are the same in every request.
        """
        found: dict[int, str] = {}
        archive: Archive | None = None
        left = room
        for unit in self._units(plan):
            if not unit.is_of_user or unit.start < self._history.units[plan.question].start:
                continue
            budget = min(self._planner.passage_tokens, left)
            key = b"passages %d " % budget + self._key(plan) + self._digests[unit.start - self._history.num_head + 1]
            text = self._texts.find(key)
            if text is None:
                archive = archive or self._find_archive(self._key(plan), partial(self._left_out, plan))
                text = archive.passages(self._history.question_of(unit.start, plan.stubbed), budget)
                self._texts.keep(key, text)
            if text and self._cost(text) <= left:
                left -= self._cost(text)
                found[unit.start] = text
        return found, room - left

    def _summary(self, plan: Plan, room: int) -> Summary:
        """Find or write what stands in the place of the turns that are put away; empty: nothing does."""
        budget = self._summary_tokens(plan, room)
        if budget <= 0:
            return Summary("")
        key = self.summary_key(plan)
        summary: Summary | None = self._texts.find(key)
        if summary is None:
            summary = Summary(self.extract(plan, budget))
            if not self._planner.is_summary_by_model:  # else this one only stands in, until the model is asked
                self._texts.keep(key, summary)
        return summary

    def _summary_tokens(self, plan: Plan, room: int) -> int:
        return min(self._planner.summary_tokens, room - self._cost(summary_block(""))) if plan.num_away else 0

    def _cost(self, block: str) -> int:
        """Count what a text takes in front of another."""
        return self._count(_in_front(block, ""))

    def _key(self, plan: Plan) -> bytes:
        """Name the last cut: the history up to it, and what decided about it."""
        last = self._history.units[plan.cut_at - 1]
        return self._planner.fingerprint + self._digests[last.start + len(last.messages) - self._history.num_head]

    def _size_away(self, plan: Plan) -> tuple[int, int]:
        """Count the messages in whose place the summary stands, and their tokens."""
        borders, sizes = self._history.borders, self._history.sizes_as_they_came
        pinned = range(0) if plan.pinned is None else range(borders[plan.pinned], borders[plan.pinned + 1])
        num_tokens = plan.num_away_tokens - sum(sizes[index] for index in pinned)
        return borders[plan.num_away] - borders[0] - len(pinned), num_tokens

    def _away(self, plan: Plan) -> list[int]:
        """Give the messages in whose place the summary stands."""
        borders = self._history.borders
        pinned = range(0) if plan.pinned is None else range(borders[plan.pinned], borders[plan.pinned + 1])
        return [index for index in range(borders[0], borders[plan.num_away]) if index not in pinned]

    def _left_out(self, plan: Plan) -> list[tuple[str, str]]:
        """Give everything that is not sent as it came, up to the last cut, in the order of the history."""
        borders = self._history.borders
        until_cut = range(borders[plan.num_away], borders[plan.cut_at])
        whole = {*self._away(plan), *plan.cleared}
        whole.update(index for index in until_cut if self._history.shortened[index].text)
        found: list[tuple[str, str]] = []
        for index in sorted(whole.union(place.message for place in plan.stubbed)):
            texts = texts_of(self._history.messages[index].content)
            if index in whole:
                found += [(Place(index, number).document, text) for number, text in enumerate(texts)]
            else:
                found += [
                    (entry.place.document, texts[entry.place.text][entry.start : entry.stop])
                    for entry in self._stubbed(plan, index)
                ]
        return found


def _is_summary_a_turn(sent: Mapping[int, Message]) -> bool:
    """Whether it is a turn of its own, or a part of the first one that is sent: templates want roles to alternate."""
    return next(iter(sent.values())).role != "user"


def _without(content: Content, documents: Sequence[Document]) -> Content:
    """Put stubs in the place of documents, at most one in each text."""
    texts = texts_of(content)
    for document in documents:
        text = texts[document.place.text]
        before, middle, behind = text[: document.start], text[document.start : document.stop], text[document.stop :]
        instead = stub(document.place.document, middle, document.num_tokens)
        texts[document.place.text] = f"{before}{instead}\n\n{behind}" if behind else before + instead
    changed = iter(texts)
    return map_texts(content, lambda _: next(changed))


def _begun_with(block: str, message: Message) -> Message:
    content = message.content
    if isinstance(content, tuple):
        return replace(message, content=(text_part(_in_front(block, "")), *content))
    return replace(message, content=_in_front(block, content or ""))


def _in_front(block: str, text: str) -> str:
    return f"{block}\n{text}"
