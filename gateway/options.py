"""Command lines, generated from the settings model.

argparse only splits words here; reading and checking values is the model's, for flags, environment and file alike.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import yaml
from pydantic import ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from gateway.config_file import ConfigFileError
from gateway.settings import ENVIRONMENT_PREFIX, Settings, is_in_environment, mask_url, unknown_variables
from gateway.validation import wanted

POSITIONAL = "model"
NO_FLAG = frozenset({"admin_key", "pepper", "upstream_key"})
REPEATABLE = frozenset({"upstream"})


def parse_options(argv: Sequence[str]) -> Settings:
    """Read flags, then environment, then file, then defaults.

    Exits with status 2 and a message on an unknown option or a bad value, and with 0 after --help and --print-config.
    """
    parser = _serve_parser()
    given = vars(parser.parse_args(argv))
    print_config = given.pop("print_config", False)
    settings = read_settings(parser, given)
    if print_config:
        sys.stdout.write(yaml.safe_dump(settings.shown(), sort_keys=False, allow_unicode=True))
        parser.exit()
    return settings


def add_flags(parser: argparse.ArgumentParser, names: Collection[str]) -> None:
    """Give a command the flags of some settings."""
    for name in names:
        _add_flag(parser, name, Settings.model_fields[name])


def read_settings(parser: argparse.ArgumentParser, given: Mapping[str, Any]) -> Settings:
    """Build the settings from flags, environment and file, or exit with status 2 and a message."""
    for name in unknown_variables():
        parser.error(f"{name}: is no option of this version; --help lists the variables")
    try:
        return Settings(**given)
    except ConfigFileError as error:
        parser.error(f"--config: {error}")
    except ValidationError as error:
        parser.error("; ".join(_message(details, given) for details in error.errors()))


def _serve_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="prefixgate serve",
        usage="prefixgate serve [MODEL] [OPTIONS]",
        description="Serve a model with an OpenAI-compatible API. Flags win over the environment, and that over a file.",
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
    )
    parser.add_argument(
        "--print-config", action="store_true", help="print every option as YAML, secrets masked, and end"
    )
    secrets = parser.add_argument_group("environment or file only")
    secrets.description = "; ".join(f"{_variable(n)}  {Settings.model_fields[n].description}" for n in sorted(NO_FLAG))
    for name, field in Settings.model_fields.items():
        if name not in NO_FLAG:
            _add_flag(parser, name, field)
    return parser


def _add_flag(parser: argparse.ArgumentParser, name: str, field: FieldInfo) -> None:
    if name == POSITIONAL:
        parser.add_argument(name, nargs="?", metavar="MODEL", help=_help(name, field))
    elif name in REPEATABLE:
        parser.add_argument(_flag(name), action="append", metavar="URL", help=_help(name, field))
    elif field.annotation is bool:
        parser.add_argument(_flag(name), action=argparse.BooleanOptionalAction, help=_help(name, field))
    else:
        parser.add_argument(_flag(name), metavar=_metavar(name), help=_help(name, field))


def _help(name: str, field: FieldInfo) -> str:
    default = "" if field.default in (None, ()) else f" (default: {field.default})"
    return f"{field.description}{default} [{_variable(name)}]".replace("%", "%%")


def _message(details: ErrorDetails, given: Mapping[str, Any]) -> str:
    """Say which option, what came and what was wanted."""
    if not details["loc"]:
        return wanted(details)  # the check over several options names them itself
    name, *within = map(str, details["loc"])
    if details["type"] == "extra_forbidden" and not within:
        return f"{name} in the file of --config: is no option of this version; --help lists them"
    if name in NO_FLAG:
        return f"{_variable(name)}: wanted {wanted(details)}"
    option = ".".join([_option(name, given), *within])
    if "key" in within or "headers" in within:
        return f"{option}: wanted {wanted(details)}"
    came = repr(details["input"])
    return f"{option}: got {mask_url(came) if name in ('db', 'upstream') else came}, wanted {wanted(details)}"


def _option(name: str, given: Mapping[str, Any]) -> str:
    option = f"{'MODEL' if name == POSITIONAL else _flag(name)} ({_variable(name)})"
    is_from_file = name not in given and not is_in_environment(name)
    return f"{name} in the file of --config" if is_from_file else option


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _variable(name: str) -> str:
    return ENVIRONMENT_PREFIX + name.upper()


def _metavar(name: str) -> str:
    return name.rpartition("_")[2].upper()
