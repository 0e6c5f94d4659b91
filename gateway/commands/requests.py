"""`prefixgate requests list | show | explain | export`: the request log, and the cache of one request."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from gateway.commands.admin_client import AdminClient, Json
from gateway.commands.admin_command import AdminCommand, say, write
from gateway.commands.tables import print_object, print_table

_FILTERS = {
    "tenant": "id or name",
    "key": "id of a key",
    "model": "name of a model",
    "endpoint": "such as /v1/chat/completions",
    "status": "HTTP status; 499: the client left",
    "error": "code of an error",
    "since": "from this time on, as in 2030-01-31T00:00:00Z",
    "until": "before this time",
    "min_prompt_tokens": "at least so many tokens in the prompt",
    "min_cached_tokens": "at least so many of them from the cache",
    "min_output_tokens": "at least so many generated",
    "min_total_seconds": "that took at least so long",
}
_COLUMNS = (
    "created_at",
    "request_id",
    "tenant",
    "model",
    "status",
    "num_prompt_tokens",
    "context_management.original_input_tokens",
    "num_cached_tokens",
    "num_output_tokens",
    "total_seconds",
)


def main(argv: Sequence[str]) -> int:
    """Look at the request log."""
    command = AdminCommand("requests", "What came, and how it went.")
    listing = command.add_object("list", "print the newest requests", _list, _show_list)
    listing.add_argument("--limit", type=_positive, default=20, metavar="N", help="at most so many (default: 20)")
    export = command.add(
        "export", "print requests as JSON lines, oldest first, content too where it is stored", _export
    )
    for parser in (listing, export):
        for name, meaning in _FILTERS.items():
            parser.add_argument(f"--{name.replace('_', '-')}", metavar=name.rpartition("_")[2].upper(), help=meaning)
    show = command.add_object("show", "print one request", _show, print_object)
    show.add_argument("request", metavar="ID", help="request id or completion id")
    show.add_argument(
        "--blocks", action="store_true", help="its blocks instead: live while it runs, afterwards as they were"
    )
    explain = command.add_object("explain", "print why a request took no more from the cache", _explain, print_object)
    explain.add_argument("request", metavar="ID", help="request id or completion id")
    return command.run(argv)


def _positive(text: str) -> int:
    value = int(text) if text.isdecimal() else 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"got {text!r}, wanted a whole number of at least 1")
    return value


def _filters(args: argparse.Namespace) -> Json:
    # The API reads and checks them, so that there is one answer to what is a time.
    return {name: getattr(args, name) for name in _FILTERS}


def _list(client: AdminClient, args: argparse.Namespace) -> Json:
    return client.pages("requests", query=_filters(args), limit=args.limit)


def _show_list(page: Json) -> None:
    print_table(page["data"], _COLUMNS)
    if page.get("has_more"):
        say("there are older ones: --limit N")


def _show(client: AdminClient, args: argparse.Namespace) -> Json:
    return client.get("requests", args.request, *(["blocks"] if args.blocks else []))


def _explain(client: AdminClient, args: argparse.Namespace) -> Json:
    return client.get("requests", args.request, "explain")


def _export(client: AdminClient, args: argparse.Namespace) -> None:
    count = 0
    for count, line in enumerate(client.lines("requests", "export", query=_filters(args)), 1):  # noqa: B007 -- counts
        write(line)
    say(f"{count} request{'' if count == 1 else 's'}")
