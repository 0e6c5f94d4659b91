"""What all commands over the admin API have in common: their flags, where their output goes, and how they end."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence

import orjson
from pydantic import ValidationError

from gateway.commands.admin_client import AdminClient, AdminError, Json
from gateway.settings import ClientSettings, unknown_variables
from gateway.validation import wanted

Perform = Callable[[AdminClient, argparse.Namespace], None]
Fetch = Callable[[AdminClient, argparse.Namespace], Json]
Show = Callable[[Json], None]

_INTERRUPTED = 130
"""What shells report of a command that Ctrl-C ended."""


class AdminCommand:
    """`prefixgate NAME ACTION …`, or `prefixgate NAME …` where it does one thing only."""

    def __init__(self, name: str, description: str) -> None:
        self._parser = argparse.ArgumentParser(
            prog=f"prefixgate {name}",
            description=f"{description} Needs a running gateway, and its admin key in PREFIXGATE_ADMIN_KEY.",
            allow_abbrev=False,
        )
        self._actions: argparse._SubParsersAction[argparse.ArgumentParser] | None = None

    def add(self, name: str, meaning: str, perform: Perform) -> argparse.ArgumentParser:
        """Add an action that prints for itself; give back its parser, for its own arguments."""
        if self._actions is None:
            self._actions = self._parser.add_subparsers(required=True, metavar="ACTION")
        return self._equip(
            self._actions.add_parser(name, help=meaning, description=meaning, allow_abbrev=False), perform
        )

    def add_object(self, name: str, meaning: str, fetch: Fetch, show: Show) -> argparse.ArgumentParser:
        """Add an action that prints one object: with `--json` as the API gave it, else as `show` does."""
        return _with_json(self.add(name, meaning, _printing(fetch, show)))

    def only_object(self, fetch: Fetch, show: Show) -> argparse.ArgumentParser:
        """Make it a command without actions, which prints one object as `add_object` says."""
        return _with_json(self._equip(self._parser, _printing(fetch, show)))

    def _equip(self, parser: argparse.ArgumentParser, perform: Perform) -> argparse.ArgumentParser:
        url = ClientSettings.model_fields["url"]
        parser.add_argument("--url", help=f"{url.description} (default: {url.default}) [PREFIXGATE_URL]")
        parser.set_defaults(perform=perform, parser=parser)
        return parser

    def run(self, argv: Sequence[str]) -> int:
        """Do what a command line says.

        Returns: the exit status: 0; 1 where the gateway refused or did not answer. A wrong line exits with 2.
        """
        args = self._parser.parse_args(argv)
        parser: argparse.ArgumentParser = args.parser
        if not all(map(_is_text, argv)):
            parser.error("got an argument that is not valid UTF-8")
        settings = _read_settings(parser, args.url)
        if settings.admin_key is None:
            parser.error("PREFIXGATE_ADMIN_KEY: is not set; it is the admin key that the gateway was started with")
        try:
            with AdminClient(settings.url, settings.admin_key.get_secret_value()) as client:
                args.perform(client, args)
                sys.stdout.flush()
        except AdminError as error:
            print(f"{parser.prog}: {error}", file=sys.stderr)
            return 1
        except BrokenPipeError:
            # Whoever read has enough, as `head` does. Python flushes once more at its end, which must not fail again.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 1
        except KeyboardInterrupt:
            return _INTERRUPTED
        return 0


def _printing(fetch: Fetch, show: Show) -> Perform:
    def perform(client: AdminClient, args: argparse.Namespace) -> None:
        answer = fetch(client, args)
        if args.json:
            write(orjson.dumps(answer, option=orjson.OPT_APPEND_NEWLINE))
        else:
            show(answer)

    return perform


def _with_json(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    parser.add_argument("--json", action="store_true", help="print the API's object")
    return parser


def write(data: bytes) -> None:
    """Write bytes to stdout, behind what was printed."""
    sys.stdout.flush()
    sys.stdout.buffer.write(data)


def say(text: str) -> None:
    """Tell something to people that is no part of the result."""
    print(text, file=sys.stderr, flush=True)


def _is_text(argument: str) -> bool:
    """Whether it holds none of the surrogates that stand for bytes that Python could not decode."""
    return argument.encode(errors="ignore").decode() == argument


def _read_settings(parser: argparse.ArgumentParser, url: str | None) -> ClientSettings:
    for name in unknown_variables():
        parser.error(f"{name}: is no option of this version")
    try:
        return ClientSettings() if url is None else ClientSettings(url=url)
    except ValidationError as error:
        details = error.errors()[0]
        if details["loc"][0] == "url":
            parser.error(f"--url (PREFIXGATE_URL): got {details['input']!r}, wanted {wanted(details)}")
        parser.error(f"PREFIXGATE_ADMIN_KEY: wanted {wanted(details)}")
