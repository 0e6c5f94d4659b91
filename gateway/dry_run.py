"""What would become of a body: normalized, rendered and tokenized as a request would be, with nothing changed by it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import orjson

from gateway import checks, messages_content, responses_content
from gateway.auth import Identity
from gateway.backends.base import ModelInfo
from gateway.chat_request import MAX_LENGTH, conversation_of
from gateway.context.editor import ContextEditor, room_of, rooms_of
from gateway.context.estimate import estimated_tokens
from gateway.context.report import ContextReport
from gateway.context.rule import NAME as CONTEXT_POLICY
from gateway.context.rule import context_policy_in
from gateway.conversation import Conversation, body_of
from gateway.errors import ContextLengthError, InvalidRequestError, shown
from gateway.normalize.changes import changed_regions
from gateway.normalize.history import remember_history
from gateway.normalize.memory import TurnMemory
from gateway.normalize.modes import EVERY, Place, RuleModes
from gateway.normalize.recollection import Recollection
from gateway.normalize.registry import Choice, RuleSet
from gateway.normalize.rule import Context, Mode
from gateway.normalize.volatile_kinds import volatile_candidates
from gateway.rendering import PromptRenderer
from prefixcache.hashing import namespace


class _Form(NamedTuple):
    """A form of bodies."""

    route: str
    read: Callable[[Mapping[str, Any]], Conversation]
    max_tokens: tuple[str, ...]
    """Fields for the most tokens of an answer; the first that is there counts."""
    is_bound: bool = False
    """Whether more of them than there is room for means all the room; else it is an error."""


FORMS: Mapping[str, _Form] = {
    "chat.completions": _Form("/v1/chat/completions", conversation_of, ("max_completion_tokens", "max_tokens")),
    "messages": _Form("/v1/messages", messages_content.read_conversation, ("max_tokens",), is_bound=True),
    "responses": _Form("/v1/responses", responses_content.read_conversation, ("max_output_tokens",)),
}
"""By the name of the endpoint."""

Json = dict[str, Any]


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
        cuts: whether there is a context policy.
    """

    def __init__(self, modes: RuleModes, renderer: PromptRenderer | None, *, cuts: bool = False) -> None:
        self._modes = modes
        self._renderer = renderer
        self._cuts = cuts

    def run(self, request: DryRunRequest, model: ModelInfo) -> Json:
        """Try one body.

        Raises: InvalidRequestError: the body is none, a rule does not exist, or a parameter is wrong.
        """
        form = _form(request.endpoint)
        choices = self._modes.resolved(request.tenant, form.route)
        for name, choice in request.choices.items():
            self._modes.check_named(Place(EVERY, EVERY, name), choice)
        rules = self._modes.registry.rule_set(_in_mode({**choices, **request.choices}, request.mode))
        scope = Identity(request.tenant).scope
        memory = TurnMemory()
        earlier = [_conversation(f"history[{index}]", body, form) for index, body in enumerate(request.history)]
        remember_history(earlier, rules, memory=memory, scope=scope)
        raw = _conversation("body", request.body, form)
        canonical = rules.normalize(raw, Context(scope, Recollection(memory, scope))).conversation
        canonical, rendered, context = self._sent(canonical, rules, model, _AnswerLimit(request.body, form))
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
            "scope": _namespace(canonical, scope, model),
        }

    def _sent(
        self, canonical: Conversation, rules: RuleSet, model: ModelInfo, limit: _AnswerLimit
    ) -> tuple[Conversation, Json, ContextReport | None]:
        """Give what is sent, rendered, and what the context policy does to it; as a request is prepared."""
        editor = ContextEditor(estimated_tokens, TurnMemory())
        if self._cuts and (policy := context_policy_in(rules)) is not None:
            for room, is_last in rooms_of(model.max_model_len, limit.max_tokens):
                fitted = editor.edit(canonical, policy, room, "")
                rendered = self._rendered(fitted.conversation, model)
                if is_last or limit.leaves_room(rendered, model):
                    break
            num_tokens = _num_tokens(rendered, fitted.tokens_after)
            return fitted.conversation, rendered, ContextReport.of(Mode.ON, fitted, num_tokens, 0.0)
        rendered = self._rendered(canonical, model)
        if self._cuts and (policy := context_policy_in(rules, Mode.AUDIT)) is not None:
            fitted = editor.audit(canonical, policy, room_of(model.max_model_len, limit.max_tokens))
            num_tokens = _num_tokens(rendered, fitted.tokens_before)
            return canonical, rendered, ContextReport.of(Mode.AUDIT, fitted, num_tokens, 0.0)
        return canonical, rendered, None

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


class _AnswerLimit(NamedTuple):
    """How long a body lets its answer become."""

    body: Json
    form: _Form

    @property
    def max_tokens(self) -> int | None:
        """None: the room that is left. Raises: InvalidRequestError: it is no number of tokens."""
        for name in self.form.max_tokens:
            if (value := self.body.get(name)) is not None:
                return checks.integer(f"body.{name}", value, low=0, high=MAX_LENGTH)
        return None

    def leaves_room(self, rendered: Json, model: ModelInfo) -> bool:
        """Whether a prompt and its answer fit."""
        if rendered["token_ids"] is None:
            return False
        room, wanted = model.max_model_len - len(rendered["token_ids"]), self.max_tokens
        return room >= (wanted != 0) and (self.form.is_bound or wanted is None or wanted <= room)


def _num_tokens(rendered: Json, estimate: int) -> int:
    """Count a prompt; by estimate where it has no tokens."""
    return estimate if rendered["token_ids"] is None else len(rendered["token_ids"])


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


def _conversation(name: str, body: Json, form: _Form) -> Conversation:
    """Check a body; an error names the field inside it."""
    try:
        return form.read({field: value for field, value in body.items() if value is not None})
    except InvalidRequestError as error:
        raise InvalidRequestError(f"{name}.{error}", param=f"{name}.{error.param}") from error


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
