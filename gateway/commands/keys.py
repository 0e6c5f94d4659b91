"""`prefixgate keys create | list | rotate | revoke | limit`. A new key is alone on stdout: `KEY=$(prefixgate keys create acme)`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from gateway.commands.admin_client import AdminClient, Json
from gateway.commands.admin_command import AdminCommand, say
from gateway.commands.limit_flags import add_limit_action
from gateway.commands.tables import print_object, print_table

_COLUMNS = ("id", "tenant", "name", "hint", "state", "models", "created_at", "expires_at")


def main(argv: Sequence[str]) -> int:
    """Make, look at and end API keys."""
    command = AdminCommand("keys", "Keys to /v1.")
    create = command.add_object("create", "make a key and print it, this once", _create, _show_new)
    create.add_argument("tenant", metavar="TENANT", help="whose it is: id or name")
    create.add_argument("--name", help="what it is for")
    create.add_argument(
        "--expires-at", metavar="TIME", help="when it ends, as in 2030-01-31T00:00:00Z (default: never)"
    )
    create.add_argument("--model", action="append", metavar="MODEL", help="allow only this model; may be repeated")
    listing = command.add_object("list", "print all keys, not the secrets", _list, _show_list)
    listing.add_argument("--tenant", help="only those of this tenant: id or name")
    rotate = command.add_object("rotate", "make a key in place of another, and print it this once", _rotate, _show_new)
    rotate.add_argument("key", metavar="ID", help="id of the key that goes")
    rotate.add_argument("--grace-seconds", type=float, metavar="S", help="how long it goes on working (default: 0)")
    revoke = command.add_object("revoke", "end a key at once and for good", _revoke, print_object)
    revoke.add_argument("key", metavar="ID", help="id of the key, not the key itself")
    add_limit_action(command, "keys", "ID", "id of the key, not the key itself")
    return command.run(argv)


def _create(client: AdminClient, args: argparse.Namespace) -> Json:
    fields = {"tenant": args.tenant, "name": args.name, "expires_at": args.expires_at, "models": args.model}
    return client.post("keys", body=fields)


def _list(client: AdminClient, args: argparse.Namespace) -> Json:
    return client.pages("keys", query={"tenant": args.tenant})


def _rotate(client: AdminClient, args: argparse.Namespace) -> Json:
    return client.post("keys", args.key, "rotate", body={"grace_seconds": args.grace_seconds})


def _revoke(client: AdminClient, args: argparse.Namespace) -> Json:
    return client.post("keys", args.key, "revoke")


def _show_list(page: Json) -> None:
    print_table(page["data"], _COLUMNS)


def _show_new(made: Json) -> None:
    print(made["key"])
    replaced = f" in place of {made['replaces']}" if made["replaces"] else ""
    say(f"{made['id']}{replaced}: send it as 'Authorization: Bearer KEY'; it is not shown again")
