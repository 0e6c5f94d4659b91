"""Log set-up, called by commands only. No prompt, token id or key is ever logged."""

from __future__ import annotations

import logging
import sys


def configure_logging() -> None:
    """Write INFO and above to stderr, one line each."""
    logging.basicConfig(
        stream=sys.stderr,
        level=logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
