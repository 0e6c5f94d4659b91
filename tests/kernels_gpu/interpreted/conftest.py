"""These tests need the interpreter from the first import on; `test_interpreted.py` starts them so."""

from __future__ import annotations

import os

collect_ignore_glob = [] if os.environ.get("TRITON_INTERPRET") == "1" else ["test_*.py"]
