"""What would become of a body: normalized, rendered and tokenized as a request would be, with nothing changed by it."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple, TypeVar

import orjson

from gateway import checks, messages_content, messages_context, responses_content, responses_context
from gateway.answer_room import AnswerWanted, answer_room
from gateway.auth import Identity
from gateway.backends.base import ModelInfo
from gateway.chat_request import MAX_LENGTH, conversation_of
from gateway.context.asked import ContextAsked
from gateway.context.editor import ContextEditor
from gateway.context.rule import NAME as CONTEXT_POLICY
from gateway.context.shortening import LongChat, Prompt, Sender, Shortened, shorten
from gateway.context.units import Counter
from gateway.conversation import Conversation, body_of
from gateway.errors import ContextLengthError, InvalidRequestError, NotFoundError, shown
from gateway.normalize.changes import changed_regions
from gateway.normalize.history import remember_history
from gateway.normalize.memory import TurnMemory
from gateway.normalize.modes import EVERY, Place, RuleModes
from gateway.normalize.recollection import Recollection
from gateway.normalize.registry import Choice, RuleSet
from gateway.normalize.rule import Context, Mode
from gateway.normalize.volatile_kinds import volatile_candidates
from gateway.prompts.documents import Documented, with_documents
from gateway.prompts.registered import RegisteredPrompts
from gateway.rendering import PromptRenderer
from prefixcache.hashing import namespace

Json = dict[str, Any]
_T = TypeVar("_T")


class _Form(NamedTuple):
    """A form of bodies."""

    route: str
    read: Callable[[Mapping[str, Any]], Conversation]
    read_wishes: Callable[[Json], ContextAsked] = lambda _: ContextAsked()
    """About the context of the chat."""
    max_tokens: tuple[str, ...] = ()
    """Fields for the tokens that an answer must have room for; the first that is there counts."""


FORMS: Mapping[str, _Form] = {
    "chat.completions": _Form(
        "/v1/chat/completions", conversation_of, max_tokens=("max_completion_tokens", "max_tokens")
    ),
    "messages": _Form("/v1/messages", messages_content.read_conversation, messages_context.asked_context),
    "responses": _Form(
        "/v1/responses", responses_content.read_conversation, responses_context.asked_context, ("max_output_tokens",)
    ),
}
"""By the name of the endpoint."""


@dataclass(frozen=True, slots=True)
class DryRunRequest:
    """What to try."""

    body: Json
    endpoint: str = "chat.completions"
    """Whose form the body has, and the earlier ones; and whose rules run."""
    tenant: str = "default"
    """Any label; no tenant of this name has to exist."""
    mode: Mode = Mode.ON
    """Off: no rule runs; audit: rules that are on are only reported."""
    history: Sequence[Json] = ()
    """Earlier bodies, whose assistant turns count as returned."""
    choices: Mapping[str, Choice] = field(default_factory=dict)
    """By rule, beside what is in force."""


class DryRun:
    """Tries bodies with the rules and the template of a running gateway.

    Args:
        modes: the rules.
        renderer: None: there is no template, and so no tokens.
        registered: gives the documents that bodies may refer to; None: those are the upstream's to know.
        count: tells how long texts are; None: what is left out of a chat is the upstream's to say.
    """

    def __init__(
        self,
        modes: RuleModes,
        renderer: PromptRenderer | None,
        registered: Callable[[], RegisteredPrompts] | None = None,
        count: Counter | None = None,
    ) -> None:
        self._modes = modes
        self._renderer = renderer
        self._registered = registered
        self._count = count

    def run(self, request: DryRunRequest, model: ModelInfo) -> Json:
        """Try one body.

        Raises: InvalidRequestError: the body is none, a rule does not exist, or a parameter is wrong; NotFoundError: it
        refers to a document that is not registered for the tenant.
        """
        form = _form(request.endpoint)
        documented = self._read("body", request.body, form, request.tenant)
        choices = self._modes.resolved(request.tenant, form.route)
        for name, choice in request.choices.items():
            self._modes.check_named(Place(EVERY, EVERY, name), choice)
        rules = self._modes.registry.rule_set(
            _in_mode({**choices, **documented.choices, **request.choices}, request.mode)
        )
        scope = Identity(request.tenant).scope
        memory = TurnMemory()
        earlier = [
            self._read(f"history[{index}]", body, form, request.tenant).conversation
            for index, body in enumerate(request.history)
        ]
        remember_history(earlier, rules, memory=memory, scope=scope)
        raw = documented.conversation
        canonical = rules.normalize(raw, Context(scope, Recollection(memory, scope))).conversation
        sent = self._shortened(canonical, rules, request.body, form, model)
        canonical, rendered, context = sent.conversation, sent.prompt.made, sent.report
        report = self._report(rules, raw, Context(scope, Recollection(memory, scope)))
        could_move = _could_move(canonical, rendered)
        for rule in report:
            if rule["name"] == "relocate_volatile" and could_move is not None:
                rule["detail"] = "; ".join(filter(None, [rule["detail"], could_move]))
            if rule["name"] == CONTEXT_POLICY and context is not None and context.edits:
                rule |= {"fired": True, "detail": context.in_words()}
        return {
            "canonical": body_of(canonical),
            **rendered,
            "rules": report,
            "context_management": None if context is None else context.recorded(),
            "documents": documented.shown(),
            "scope": _namespace(canonical, scope, model),
        }

    def _read(self, name: str, body: Json, form: _Form, tenant: str) -> Documented:
        """Check a body, and put in what it refers to; an error names the field inside it."""
        with _inside(name):
            conversation = form.read({field: value for field, value in body.items() if value is not None})
            if self._registered is None:
                return Documented(conversation)
            documented = with_documents(conversation, self._registered(), tenant)
        return documented if self._renderer is None else documented.fitted(self._renderer)

    def _shortened(
        self, canonical: Conversation, rules: RuleSet, body: Json, form: _Form, model: ModelInfo
    ) -> Shortened[Json]:
        """Give what would be sent; where the model would write a summary, with quotes."""
        wanted, wishes = AnswerWanted(), ContextAsked()

        async def run(work: Callable[[], _T], /) -> _T:
            return work()

        async def attempt(conversation: Conversation, /, *, is_last: bool) -> Prompt[Json]:
            rendered = self._rendered(conversation, model)
            num_tokens = len(rendered["token_ids"] or ())
            if rendered["token_ids"] is None and not is_last:
                raise ContextLengthError(rendered["render_error"])
            if not is_last:
                answer_room(num_tokens, wanted, "messages", model.max_model_len)
            return Prompt(rendered, num_tokens)

        if self._count is None:
            return Shortened(canonical, asyncio.run(attempt(canonical, is_last=True)))
        with _inside("body"):
            fields = {name: value for name, value in body.items() if value is not None}
            lengths = (_number(name, fields[name]) for name in form.max_tokens if name in fields)
            wanted, wishes = AnswerWanted(next(lengths, None)), form.read_wishes(fields)
        chat = LongChat(canonical, wishes, rules, "", model.max_model_len, wanted.max_tokens)
        return asyncio.run(shorten(chat, ContextEditor(self._count, TurnMemory()), Sender(run, attempt)))

    def _rendered(self, canonical: Conversation, model: ModelInfo) -> Json:
        if self._renderer is None:
            why = "this gateway has no tokenizer; start it with --tokenizer FOLDER"
            return {"token_ids": None, "render_error": why, "regions": []}
        try:
            self._renderer.check(canonical)
            rendered = self._renderer.render(canonical, max_model_len=model.max_model_len)
        except (InvalidRequestError, ContextLengthError) as error:
            return {"token_ids": None, "render_error": str(error), "regions": []}
        regions = [asdict(region) for region in rendered.regions]
        return {"token_ids": rendered.token_ids.tolist(), "render_error": None, "regions": regions}

    def _report(self, rules: RuleSet, raw: Conversation, context: Context) -> list[Json]:
        """Tell of every rule whether it fired, or would have in audit mode, and where."""
        changed = {name: changed_regions(before, after) for name, before, after in rules.steps(raw, context)}
        return [
            {
                "name": rule.name,
                "version": rule.version,
                "class": rule.rule_class.value,
                "mode": rules.mode_of(rule.name).value,
                "fired": rule.name in changed,
                "detail": "changed " + ", ".join(changed[rule.name]) if rule.name in changed else None,
            }
            for rule in self._modes.registry.rules
        ]


@contextmanager
def _inside(name: str) -> Iterator[None]:
    """Let errors name the field inside a body."""
    try:
        yield
    except (InvalidRequestError, NotFoundError) as error:
        raise type(error)(f"{name}.{error}", param=f"{name}.{error.param}") from error


def _number(name: str, value: object) -> int:
    return checks.integer(name, value, low=0, high=MAX_LENGTH)


def _could_move(canonical: Conversation, rendered: Json) -> str | None:
    """Name what looks volatile in the head, and how many tokens stand in its region and behind it."""
    candidates = volatile_candidates(canonical)
    if not candidates:
        return None
    found = ", ".join(dict.fromkeys(f"{one.kind} in {one.owner}" for one in candidates))
    owners = {one.owner for one in candidates}
    starts = [region["start"] for region in rendered["regions"] if region["owner"] in owners]
    if not starts:
        return f"could move {found}"
    num_tokens = len(rendered["token_ids"]) - min(starts)
    return f"could move {found}: where it changes, up to {num_tokens} tokens are lost"


def _form(endpoint: str) -> _Form:
    form = FORMS.get(endpoint)
    if form is None:
        raise InvalidRequestError(
            f"endpoint: got {shown(endpoint)}, wanted one of {', '.join(FORMS)}", param="endpoint"
        )
    return form


def _in_mode(choices: Mapping[str, Choice], mode: Mode) -> Mapping[str, Choice]:
    if mode is Mode.ON:
        return choices
    return {
        name: Choice(mode, choice.params) if choice.mode is Mode.ON or mode is Mode.OFF else choice
        for name, choice in choices.items()
    }


def _namespace(canonical: Conversation, scope: str, model: ModelInfo) -> str:
    """Digest everything that keeps equal tokens apart: model, tenant, and what other parts than texts hold."""
    others = [
        part
        for message in canonical.messages
        if isinstance(message.content, tuple)
        for part in message.content
        if part["type"] != "text"
    ]
    fields = {
        **model.namespace_fields,
        "requested_model": orjson.dumps(canonical.fields.get("model")).decode(),
        "parts": orjson.dumps(others, option=orjson.OPT_SORT_KEYS).decode(),
    }
    return hashlib.sha256(namespace(fields, scope=scope)).hexdigest()
