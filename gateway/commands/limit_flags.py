"""The action `limit`, which tenants and keys have in common."""

from __future__ import annotations

import argparse

from gateway.commands.admin_client import AdminClient, Json
from gateway.commands.admin_command import AdminCommand
from gateway.commands.tables import print_object
from gateway.limits.limits import LIMIT_NAMES


def add_limit_action(command: AdminCommand, path: str, metavar: str, meaning: str) -> None:
    """Add `limit` to a command whose objects stand below a path of the API."""

    def change(client: AdminClient, args: argparse.Namespace) -> Json:
        given = {name: value for name in LIMIT_NAMES if (value := getattr(args, name)) is not _UNCHANGED}
        if bool(given) == args.clear:
            args.parser.error("limit: wanted one limit or more, or --clear alone")
        return client.patch(path, args.target, body={"limits": None if args.clear else given})

    parser = command.add_object("limit", "set or lift limits; those that are not named stay", change, print_object)
    parser.add_argument("target", metavar=metavar, help=meaning)
    for name in LIMIT_NAMES:
        parser.add_argument(
            _flag(name), type=_amount, default=_UNCHANGED, metavar="N", help=f"{_MEANINGS[name]}; none: any number"
        )
    parser.add_argument("--clear", action="store_true", help="take all choices back: the gateway's defaults hold")


_UNCHANGED = -1
_MEANINGS = {
    "requests_per_minute": "most requests in a minute",
    "requests_per_day": "most requests in a day",
    "tokens_per_minute": "most tokens in a minute, of prompts and answers together",
    "tokens_per_day": "most tokens in a day, of prompts and answers together",
    "concurrency": "most requests at the same time",
}


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _amount(text: str) -> int | None:
    if text == "none":
        return None
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"got {text!r}, wanted 1 or more, or none")
    return int(text)
