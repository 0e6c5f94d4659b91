"""Programs that tests need and Python does not bring: missing is a skip with a reason on a laptop, a failure in CI."""

from __future__ import annotations

import os
import shutil

import pytest


def require_program(name: str, package: str) -> str:
    """Return the program's path."""
    path = shutil.which(name)
    if path is None:
        reason = f"{name} is missing (Debian package {package}; `make test` as root installs it)"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    return path
