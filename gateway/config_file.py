"""Reads a YAML file of options into names and values. Which names there are, and what they mean, is the settings' business."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml


class ConfigFileError(Exception):
    """The file cannot be read, or is no mapping of names to values."""


def read_config_file(path: Path) -> dict[str, Any]:
    """Read options; `max-model-len` and `max_model_len` are the same name.

    Raises: ConfigFileError: says what is wrong with the file.
    """
    try:
        content = yaml.load(path.read_text(encoding="utf-8"), _Loader)  # noqa: S506 -- it is a SafeLoader
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ConfigFileError(f"{path}: cannot be read: {reason}") from error
    except yaml.YAMLError as error:
        raise ConfigFileError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from error
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ConfigFileError(f"{path}: got {type(content).__name__}, wanted a mapping of options to values")
    if "config" in content:
        raise ConfigFileError(f"{path}: config: a file cannot name another one")
    names = [str(name).replace("-", "_") for name in content]
    if twice := {name for name in names if names.count(name) > 1}:
        raise ConfigFileError(f"{path}: {', '.join(sorted(twice))}: given twice")
    return dict(zip(names, content.values(), strict=True))


class _Loader(yaml.SafeLoader):
    """YAML lets the last of two equal keys win; here the first would silently mean nothing."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:  # noqa: FBT001, FBT002, RUF100 -- the library's signature
        mapping = super().construct_mapping(node, deep)
        if len(mapping) < len(node.value):
            raise yaml.MarkedYAMLError(problem="a key is given twice", problem_mark=node.start_mark)
        return mapping
