"""`prefixgate normalize FILE`: what the gateway would make of a request body, without any effect."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

from gateway.commands.admin_client import AdminClient, Json
from gateway.commands.admin_command import AdminCommand
from gateway.commands.json_files import parsed, read_array, read_object
from gateway.commands.tables import print_object, print_table
from gateway.normalize.rule import Mode

_SEPARATOR = "="


def main(argv: Sequence[str]) -> int:
    """Try a body."""
    command = AdminCommand("normalize", "What would become of a request body: its canonical form, rules and tokens.")
    parser = command.only_object(_normalize, _show)
    parser.add_argument("file", metavar="FILE", help="JSON body of a request; - reads stdin")
    parser.add_argument("--endpoint", help="chat.completions, messages or responses (default: chat.completions)")
    parser.add_argument("--tenant", help="whose rules: a name, or any label (default: default)")
    parser.add_argument("--mode", choices=list(map(str, Mode)), help="off, audit or on (default: on)")
    parser.add_argument(
        "--history", metavar="FILE", help="JSON array of earlier bodies, whose assistant turns count as returned"
    )
    parser.add_argument(
        "--rule",
        action="append",
        default=[],
        metavar="NAME[=PARAMS]",
        help="with this rule on, and parameters as a JSON object; may be repeated",
    )
    parser.add_argument("--without", action="append", default=[], metavar="NAME", help="without this rule; the same")
    return command.run(argv)


def _normalize(client: AdminClient, args: argparse.Namespace) -> Json:
    rules = [_rule(text) for text in args.rule] + [{"name": name, "enabled": False} for name in args.without]
    body = {
        "body": read_object(args.file, "FILE"),
        "endpoint": args.endpoint,
        "tenant": args.tenant,
        "mode": args.mode,
        "history": read_array(args.history, "--history") if args.history else None,
        "rules": rules or None,
    }
    return client.post("normalize", body=body)


def _rule(text: str) -> Json:
    name, separator, params = text.partition(_SEPARATOR)
    rule: Json = {"name": name}
    if separator:
        rule["params"] = parsed(params, f"--rule: {name}", dict, "a JSON object")
    return rule


def _show(answer: Json) -> None:
    told = [rule for rule in answer["rules"] if rule["fired"] or rule["detail"]]
    for rule in told:
        print(f"{rule['name']} ({rule['class']}, {rule['mode']}): {rule['detail'] or 'fired'}")
    print()
    token_ids = answer["token_ids"]
    print_object(
        {
            "canonical": answer["canonical"],
            "num_tokens": None if token_ids is None else len(token_ids),
            "context_management": answer["context_management"],
            "render_error": answer["render_error"],
            "scope": answer["scope"],
        }
    )
    if answer["regions"]:
        print()
        print_table([_with_length(region) for region in answer["regions"]])


def _with_length(region: Mapping[str, Any]) -> Json:
    return {**region, "num_tokens": region["end"] - region["start"]}
