"""A plan becomes the conversation that is sent: with placeholders, stubs, and what is quoted."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import chain

from gateway.context.fitted import Edit, Fitted
from gateway.context.history import MESSAGE_TOKENS, Document, History, with_one_text
from gateway.context.placeholders import cleared_result, stub, summary_block
from gateway.context.plan import Plan, Planner
from gateway.context.quotes import Quotes, in_front
from gateway.context.summary import Summary
from gateway.context.units import Counter, Unit
from gateway.conversation import Content, Conversation, Message, map_texts, text_part, texts_of


class Fitter:
    """Carries a plan out.

    Args:
        history: measured.
        planner: of the same history.
        count: see `Counter`.
        quotes: of what is left out.
    """

    def __init__(self, history: History, planner: Planner, count: Counter, quotes: Quotes) -> None:
        self._history = history
        self.planner = planner
        self._count = count
        self.quotes = quotes

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
        summary = summary or self.quotes.summary(plan, room - is_turn * MESSAGE_TOKENS)
        block = summary_block(summary.text) if summary.text else ""
        summary_cost = self.quotes.cost(block) + is_turn * MESSAGE_TOKENS if block else 0
        if summary_cost > room:
            block, summary_cost = "", 0
        passages, passages_cost = self.quotes.passages(plan, self._units(plan), room - summary_cost)
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
        before = self.planner.before_cut(plan)
        if before.num_units <= before.num_away:
            return None
        return self.fit(before).conversation

    def missing_summary_tokens(self, plan: Plan) -> int:
        """Tell how long the summary of the last cut may be; 0: none is wanted, or it is remembered."""
        if not plan.num_away or self.quotes.knows_summary(plan):
            return 0
        sent, _, room = self._shortened(plan)
        return max(0, self.quotes.summary_tokens(plan, room - _is_summary_a_turn(sent) * MESSAGE_TOKENS))

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
            documents = self._history.documents_at(index, plan.stubbed)
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

    def _size_away(self, plan: Plan) -> tuple[int, int]:
        """Count the messages in whose place the summary stands, and their tokens."""
        borders, sizes = self._history.borders, self._history.sizes_as_they_came
        pinned = range(0) if plan.pinned is None else range(borders[plan.pinned], borders[plan.pinned + 1])
        num_tokens = plan.num_away_tokens - sum(sizes[index] for index in pinned)
        return borders[plan.num_away] - borders[0] - len(pinned), num_tokens


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
        return replace(message, content=(text_part(in_front(block, "")), *content))
    return replace(message, content=in_front(block, content or ""))
