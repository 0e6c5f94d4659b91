"""The version of what is installed."""

from __future__ import annotations

from importlib import metadata

VERSION = metadata.version("prefixgate")
