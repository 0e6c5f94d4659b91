"""The fast CPU backend: numba, and vectors written out where its vectorizer falls short. No compiler is needed to run it.

Compiled code is kept on disk. Numba looks only at the file of a function to tell whether that is out of date, not at the
files of the functions compiled into it; so each state of this package has a folder of its own.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numba

_config: Any = numba.config  # its attributes are made at run time


def _cache_folder() -> Path:
    sources = b"".join(path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py")))
    base = Path(_config.CACHE_DIR) if _config.CACHE_DIR else Path(__file__).parent / "__pycache__"
    return base / f"numba-{hashlib.sha256(sources).hexdigest()[:16]}"


_config.CACHE_DIR = str(_cache_folder())
