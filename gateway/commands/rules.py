"""`prefixgate rules list | set | clear`: in which mode each rule of the normalizer runs, and for whom."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from gateway.commands.admin_client import AdminClient, Json
from gateway.commands.admin_command import AdminCommand
from gateway.commands.json_files import parsed
from gateway.commands.tables import print_object, print_table
from gateway.normalize.rule import Mode


def main(argv: Sequence[str]) -> int:
    """Look at rules and choose their modes."""
    command = AdminCommand("rules", "Rules of the normalizer.")
    listing = command.add_object("list", "print all rules in their order, and every choice that was made", _list, _show)
    setting = command.add_object("set", "choose a rule's mode, at once and for all gateways", _set, print_object)
    clearing = command.add_object("clear", "take a choice back", _clear, print_object)
    for parser in (setting, clearing):
        parser.add_argument("rule", metavar="RULE", help="name of a rule; '*': all that are on by default")
    setting.add_argument("mode", metavar="MODE", choices=list(map(str, Mode)), help="off, audit or on")
    setting.add_argument("--params", metavar="JSON", help="parameters of the rule, as an object")
    for parser in (listing, setting, clearing):
        parser.add_argument("--tenant", help="for this tenant only: id or name")
        parser.add_argument("--route", metavar="PATH", help="for this path only, such as /v1/chat/completions")
    return command.run(argv)


def _list(client: AdminClient, args: argparse.Namespace) -> Json:
    return client.get("rules", query=_place(args))


def _set(client: AdminClient, args: argparse.Namespace) -> Json:
    params = {} if args.params is None else parsed(args.params, "--params", dict, "a JSON object")
    place = {name: value for name, value in _place(args).items() if value is not None}
    return client.put("rules", args.rule, body={**place, "mode": args.mode, "params": params})


def _clear(client: AdminClient, args: argparse.Namespace) -> Json:
    return client.delete("rules", args.rule, query=_place(args))


def _place(args: argparse.Namespace) -> Json:
    return {"tenant": args.tenant, "route": args.route}


def _show(answer: Json) -> None:
    print_table(answer["data"], ("name", "class", "version", "default", "mode", "params"))
    if answer["choices"]:
        print()
        print_table(answer["choices"])
