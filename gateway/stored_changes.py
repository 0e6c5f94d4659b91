"""What the normalizer makes of a body that was stored: with the rules that are in force now, and without what it remembers.

Knows nothing of HTTP.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from gateway.auth import Identity
from gateway.conversation import Conversation, body_of
from gateway.conversation_diff import unified_diff
from gateway.dry_run import FORMS
from gateway.errors import InvalidRequestError, NotFoundError, shown
from gateway.normalize.memory import TurnMemory
from gateway.normalize.modes import RuleModes
from gateway.normalize.recollection import Recollection
from gateway.normalize.rule import Context

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ReadForm:
    """How the bodies of one path are read, and which rules may change them."""

    read: Callable[[Json], Conversation]
    """Raises: InvalidRequestError: it is no conversation."""
    rules: frozenset[str] | None = None
    """None: all."""


ENGINE_FORMS: Mapping[str, ReadForm] = {form.route: ReadForm(form.read) for form in FORMS.values()}
"""Where an engine answers, by path."""


class StoredChanges:
    """Compares stored bodies with their canonical forms.

    Args:
        modes: the rules.
        forms: by path; on others no rule runs.
    """

    def __init__(self, modes: RuleModes, forms: Mapping[str, ReadForm] = ENGINE_FORMS) -> None:
        self._modes = modes
        self._forms = forms

    def show(self, row: Mapping[str, Any]) -> Json:
        """Compare what a row of the request log holds.

        Returns: the names of the rules that changed something, and a unified diff; empty: it came in canonical form.

        Raises: NotFoundError: there is nothing to compare; it says why.
        """
        form, stored = self._forms.get(row["endpoint"]), row["request_body"]
        if form is None or form.rules == frozenset():
            raise _nothing(row, f"on {row['endpoint']} no rule runs")
        if stored is None:
            raise _nothing(row, "its body was not stored; start with --store-content to keep those to come")
        try:
            raw = form.read(_object(stored))
        except (orjson.JSONDecodeError, InvalidRequestError) as error:
            raise _nothing(row, f"its body is no conversation: {error}") from error
        tenant = row["tenant_id"]
        scope = Identity(tenant).scope
        rules = self._modes.rule_set(tenant, row["endpoint"], only=form.rules)
        normalized = rules.normalize(raw, Context(scope, Recollection(TurnMemory(), scope)))
        before, after = body_of(raw), body_of(normalized.conversation)
        diff = unified_diff(before, after, old_name="as it came", new_name="canonical")
        return {"id": row["request_id"], "rules": list(normalized.fired), "diff": diff}


def _object(stored: str) -> Json:
    body = orjson.loads(stored)
    if not isinstance(body, dict):
        raise InvalidRequestError(f"got {shown(body)}, wanted an object")
    return {name: value for name, value in body.items() if value is not None}


def _nothing(row: Mapping[str, Any], why: str) -> NotFoundError:
    return NotFoundError(f"request {row['request_id']}: {why}", param="request")
