"""The fast CPU backend: numba, and vectors written out where its vectorizer falls short. No compiler is needed to run it.

Compiled code is kept on disk. Numba looks only at the file of a function to tell whether that is out of date, not at the
files of the functions compiled into it; so each state of this package has a folder of its own.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import numba

_config: Any = numba.config  # its attributes are made at run time


def _cache_folder() -> Path:
    sources = b"".join(path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py")))
    return _base_folder(Path(__file__).parent) / f"numba-{hashlib.sha256(sources).hexdigest()[:16]}"


def _base_folder(package: Path) -> Path:
    """What the user chose, else beside the sources, else, where those are read-only, in the user's cache."""
    if _config.CACHE_DIR:
        return Path(_config.CACHE_DIR)
    if os.access(package, os.W_OK):
        return package / "__pycache__"
    return Path.home() / ".cache" / "prefixgate" / "numba"


_config.CACHE_DIR = str(_cache_folder())
