"""`prefixgate prompts …`: registered prompts, their versions, and how warm they are kept."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from gateway.commands.admin_client import AdminClient, Json
from gateway.commands.admin_command import AdminCommand, Fetch, say
from gateway.commands.prompt_files import FORMATS, read_prompt, read_tools
from gateway.commands.tables import print_object, print_table


def main(argv: Sequence[str]) -> int:
    """Register prompts, look at them, and keep them warm."""
    command = AdminCommand("prompts", "System prompts that the cache is to keep.")
    _add_register(command)
    listing = command.add_object("list", "print all prompts", _list, lambda page: print_table(page["data"]))
    listing.add_argument("--tenant", help="only those of this tenant: id or name")
    listing.add_argument("--retired", action="store_true", help="the retired ones too")
    show = _add_prompt(command.add_object("show", "print a prompt and its versions", _show, print_object))
    show.add_argument("--version", type=int, metavar="N", help="all of one version instead, its text too")
    stats = _add_prompt(command.add_object("stats", "print its hits and its share of traffic", _stats, print_object))
    stats.add_argument("--since", metavar="TIME", help="from this time on (default: the last day)")
    stats.add_argument("--until", metavar="TIME", help="before this time (default: now)")
    _add_prompt(command.add_object("drift", "print where live traffic differs from it", _drift, print_object))
    diff = _add_prompt(command.add_object("diff", "compare two versions", _diff, print_object))
    diff.add_argument("old", type=int, metavar="FROM", help="number of a version")
    diff.add_argument("new", type=int, metavar="TO", help="number of another")
    activate = _add_prompt(command.add_object("activate", "make a version the one in use", _activate, print_object))
    activate.add_argument("version", type=int, metavar="VERSION", help="its number")
    _add_prompt(command.add_object("rollback", "go back to the version before", _poster("rollback"), print_object))
    _add_prompt(command.add_object("retire", "give it up; its blocks may go", _poster("retire"), print_object))
    _add_prompt(command.add_object("warm", "compute its blocks now", _warm, print_object))
    pin = _add_prompt(command.add_object("pin", "keep its blocks; replaces what was said before", _pin, print_object))
    pin.add_argument("--off", action="store_true", help="no longer")
    _add_retention(pin)
    return command.run(argv)


def _add_prompt(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    parser.add_argument("prompt", metavar="PROMPT", help="id or name")
    return parser


def _add_retention(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--priority", type=int, default=0, metavar="N", help="higher goes later (default: 0)")
    parser.add_argument(
        "--expires-at", metavar="TIME", help="when this ends, as in 2030-01-31T00:00:00Z (default: never)"
    )


def _add_register(command: AdminCommand) -> None:
    parser = command.add_object("register", "register a prompt, or a new version of one", _register, print_object)
    parser.add_argument(
        "prompt", metavar="NAME", help="of the new prompt; with --new-version, id or name of one that is there"
    )
    parser.add_argument(
        "--file", required=True, metavar="FILE", help="text of the system prompt, or messages; - is stdin"
    )
    parser.add_argument(
        "--format",
        choices=FORMATS,
        help="text, or messages: a JSON array of {role, content} (default: messages where FILE ends in .json)",
    )
    parser.add_argument("--new-version", action="store_true", help="add a version to a prompt")
    parser.add_argument("--activate", action="store_true", help="use the new version at once, as is the first one")
    parser.add_argument("--tools", metavar="FILE", help="JSON array of tools, as in a chat")
    parser.add_argument("--model", help="for this model (default: the served one)")
    parser.add_argument("--scope", help="a tenant, or public: every tenant shares its blocks")
    parser.add_argument(
        "--slot", action="append", metavar="NAME", help="a part that varies, {{NAME}} in the text; may be repeated"
    )
    parser.add_argument("--pin", action="store_true", help="never evict its blocks, within the budget for pins")
    _add_retention(parser)


def _register(client: AdminClient, args: argparse.Namespace) -> Json:
    body = read_prompt(args.file, args.format) | {"model": args.model, "slots": args.slot}
    if args.tools is not None:
        body["tools"] = read_tools(args.tools)
    if args.pin or args.priority or args.expires_at:
        body["retention"] = _retention(args, pin=args.pin)
    if args.new_version:
        if args.scope is not None:
            args.parser.error("--scope: is the prompt's, and stays as it is; leave it out with --new-version")
        return client.post("prompts", args.prompt, "versions", body=body | {"activate": args.activate})
    return client.post("prompts", body=body | {"name": args.prompt, "scope": args.scope})


def _list(client: AdminClient, args: argparse.Namespace) -> Json:
    return client.pages("prompts", query={"tenant": args.tenant, "retired": "true" if args.retired else None})


def _show(client: AdminClient, args: argparse.Namespace) -> Json:
    return client.get("prompts", args.prompt, *(["versions", str(args.version)] if args.version is not None else []))


def _stats(client: AdminClient, args: argparse.Namespace) -> Json:
    return client.get("prompts", args.prompt, "statistics", query={"since": args.since, "until": args.until})


def _drift(client: AdminClient, args: argparse.Namespace) -> Json:
    return client.get("prompts", args.prompt, "drift")


def _poster(action: str) -> Fetch:
    return lambda client, args: client.post("prompts", args.prompt, action)


def _diff(client: AdminClient, args: argparse.Namespace) -> Json:
    return client.get("prompts", args.prompt, "diff", query={"from": args.old, "to": args.new})


def _activate(client: AdminClient, args: argparse.Namespace) -> Json:
    return client.post("prompts", args.prompt, "activate", body={"version": args.version})


def _warm(client: AdminClient, args: argparse.Namespace) -> Json:
    say(f"computing the blocks of {args.prompt} …")
    return client.post("prompts", args.prompt, "warm")


def _pin(client: AdminClient, args: argparse.Namespace) -> Json:
    return client.put("prompts", args.prompt, "retention", body=_retention(args, pin=not args.off))


def _retention(args: argparse.Namespace, *, pin: bool) -> Json:
    return {"pin": pin, "priority": args.priority, "expires_at": args.expires_at}
