"""`prefixgate COMMAND …`: finds the command among the installed ones and hands the rest of the line over.

Commands register in the entry-point group `prefixgate.commands`, so this imports none but the one that runs.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.metadata import entry_points

from gateway.version import VERSION

GROUP = "prefixgate.commands"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Returns: its exit status; 2 where there is no such command.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    commands = {entry.name: entry for entry in entry_points(group=GROUP)}
    usage = f"usage: prefixgate COMMAND [OPTIONS]\n\ncommands: {', '.join(sorted(commands))}\n\n"
    usage += "prefixgate COMMAND --help tells more; prefixgate --version prints the version."
    if not arguments:
        print(usage, file=sys.stderr)
        return 2
    name, *rest = arguments
    if name in ("-h", "--help"):
        print(usage)
        return 0
    if name == "--version":
        print(f"prefixgate {VERSION}")
        return 0
    if name not in commands:
        print(f"prefixgate: got {name!r}, wanted one of: {', '.join(sorted(commands))}", file=sys.stderr)
        return 2
    return int(commands[name].load()(rest))


if __name__ == "__main__":
    sys.exit(main())
