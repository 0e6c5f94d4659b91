"""`prefixgate tenants create | list | show | limit`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from gateway.commands.admin_client import AdminClient, Json
from gateway.commands.admin_command import AdminCommand
from gateway.commands.limit_flags import add_limit_action
from gateway.commands.tables import print_object, print_table


def main(argv: Sequence[str]) -> int:
    """Make and look at tenants."""
    command = AdminCommand("tenants", "Those whose prompts are kept apart.")
    create = command.add_object("create", "make a tenant", _create, print_object)
    create.add_argument("tenant", metavar="NAME", help="1 to 100 printable characters")
    command.add_object("list", "print all tenants", _list, lambda page: print_table(page["data"]))
    show = command.add_object("show", "print a tenant", _show, print_object)
    show.add_argument("tenant", metavar="TENANT", help="id or name")
    add_limit_action(command, "tenants", "TENANT", "id or name")
    return command.run(argv)


def _create(client: AdminClient, args: argparse.Namespace) -> Json:
    return client.post("tenants", body={"name": args.tenant})


def _list(client: AdminClient, _: argparse.Namespace) -> Json:
    return client.pages("tenants")


def _show(client: AdminClient, args: argparse.Namespace) -> Json:
    return client.get("tenants", args.tenant)
