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
from gateway.upstream.options import UpstreamOptions
from gateway.validation import wanted

POSITIONAL = "model"
NO_FLAG = frozenset({"admin_key", "pepper", "upstream_key"})
REPEATABLE = frozenset({"upstream"})
ENGINE_ONLY = (
    "model",
    "model_dir",
    "tool_parser",
    "reasoning",
    "model_impl",
    "dtype",
    "quantization",
    "enforce_eager",
    "block_size",
    "num_blocks",
    "kv_cache_memory",
    "gpu_memory_utilization",
    "max_model_len",
    "max_num_seqs",
    "max_num_batched_tokens",
    "prefill_chunk",
    "long_prefill_token_threshold",
    "max_step_seconds",
    "deterministic",
    "kv_cache_dtype",
    "kv_skip_layers",
    "max_shared_ratio",
    "max_pinned_ratio",
    "growth_reserve",
    "warm_budget",
    "context_policy",
    "heartbeat_timeout",
    "start_timeout",
)
"""Options that mean nothing in front of upstreams …"""
TEMPLATES = ("chat_template", "tool_template")
"""… and those that mean nothing there without a tokenizer."""


def parse_options(argv: Sequence[str]) -> Settings:
    """Read flags, then environment, then file, then defaults.

    Exits with status 2 and a message on an unknown option or a bad value, and with 0 after --help and --print-config.
    """
    parser = _serve_parser()
    given = vars(parser.parse_args(argv))
    print_config = given.pop("print_config", False)
    settings = read_settings(parser, given)
    if settings.upstream:
        _refuse_unused(parser, settings, given)
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


def _refuse_unused(parser: argparse.ArgumentParser, settings: Settings, given: Mapping[str, Any]) -> None:
    """End with a message where an option would silently do nothing; the defaults in a printed file stand for nothing."""
    for name in (*ENGINE_ONLY, *(TEMPLATES if settings.tokenizer is None else ())):
        if name in given or getattr(settings, name) != Settings.model_fields[name].default:
            wanted_too = " without --tokenizer" if name in TEMPLATES else ""
            parser.error(f"{_option(name, given)}: does nothing with --upstream{wanted_too}, wanted one of them")


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
    option = _option(name, given, within)
    if name in NO_FLAG:
        return f"{_variable(name)}: wanted {wanted(details)}"
    if details["type"] == "extra_forbidden":
        return f"{option}: is no field there, wanted {', '.join(UpstreamOptions.model_fields)}"
    if "key" in within or "headers" in within:
        return f"{option}: wanted {wanted(details)}"
    came = repr(details["input"])
    return f"{option}: got {mask_url(came) if name in ('db', 'upstream') else came}, wanted {wanted(details)}"


def _option(name: str, given: Mapping[str, Any], within: Sequence[str] = ()) -> str:
    """Name an option, or a place within its value, as whoever gave it knows it."""
    is_from_file = name not in given and not is_in_environment(name)
    shown = name if is_from_file else "MODEL" if name == POSITIONAL else _flag(name)
    return f"{'.'.join([shown, *within])} {'in the file of --config' if is_from_file else f'({_variable(name)})'}"


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _variable(name: str) -> str:
    return ENVIRONMENT_PREFIX + name.upper()


def _metavar(name: str) -> str:
    return name.rpartition("_")[2].upper()
