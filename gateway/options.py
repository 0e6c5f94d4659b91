"""The command line of `prefixgate serve`, generated from the settings model.

argparse only splits words here; reading and checking values is the model's, for flags and environment alike.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from pydantic import ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from gateway.settings import ENVIRONMENT_PREFIX, Settings

POSITIONAL = "model"
ENVIRONMENT_ONLY = frozenset({"admin_key"})


def parse_options(argv: Sequence[str]) -> Settings:
    """Read flags, then environment, then defaults.

    Exits with status 2 and a message on an unknown flag or a bad value.
    """
    parser = _parser()
    given = vars(parser.parse_args(argv))
    try:
        return Settings(**given)
    except ValidationError as error:
        parser.error("; ".join(_message(details) for details in error.errors()))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="prefixgate serve",
        usage="prefixgate serve [MODEL] [OPTIONS]",
        description="Serve a model with an OpenAI-compatible API. Flags win over the environment.",
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
    )
    secrets = parser.add_argument_group("environment only")
    for name, field in Settings.model_fields.items():
        if name == POSITIONAL:
            parser.add_argument(name, nargs="?", metavar="MODEL", help=_help(name, field))
        elif name in ENVIRONMENT_ONLY:
            secrets.description = f"{_variable(name)}  {field.description}"
        else:
            parser.add_argument(_flag(name), metavar=_metavar(name), help=_help(name, field))
    return parser


def _help(name: str, field: FieldInfo) -> str:
    default = "" if field.default is None else f" (default: {field.default})"
    return f"{field.description}{default} [{_variable(name)}]".replace("%", "%%")


def _message(details: ErrorDetails) -> str:
    """Say which option, what came and what was wanted."""
    wanted = details["msg"].removeprefix("Value error, ").removeprefix("Input should be ")
    if not details["loc"]:
        return wanted  # the check over several options names them itself
    name = str(details["loc"][0])
    if name in ENVIRONMENT_ONLY:
        return f"{_variable(name)}: wanted {wanted}"
    return f"{_option(name)}: got {details['input']!r}, wanted {wanted.partition(', unable to parse')[0]}"


def _option(name: str) -> str:
    return f"{'MODEL' if name == POSITIONAL else _flag(name)} ({_variable(name)})"


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _variable(name: str) -> str:
    return ENVIRONMENT_PREFIX + name.upper()


def _metavar(name: str) -> str:
    return name.rpartition("_")[2].upper()
