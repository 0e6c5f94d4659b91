"""Log set-up, called by commands only: one line each on stderr, as text or JSON, with the id of the request at hand.

Code logs through the standard library, facts as `extra`. No prompt, token id or key is ever logged.
"""

from __future__ import annotations

import logging
import sys
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, Literal

import orjson

LogFormat = Literal["text", "json"]

REQUEST_ID: ContextVar[str | None] = ContextVar("request_id", default=None)
"""Of the request at hand, for every line that is logged on its behalf."""

# What every record has, and what uvicorn says a second time, for terminals.
_NO_FACTS = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "color_message"}


def configure_logging(log_format: LogFormat) -> None:
    """Write INFO and above to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if log_format == "json" else TextLines())
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    logging.getLogger("alembic").setLevel(logging.WARNING)  # it tells each step of every start
    logging.getLogger("httpx").setLevel(logging.WARNING)  # it tells each request


class TextLines(logging.Formatter):
    """Time, level, logger and message, then the facts; a traceback below."""

    def format(self, record: logging.LogRecord) -> str:
        """Print one record."""
        facts = "".join([f" {name}={value}" for name, value in _facts(record).items()])
        line = f"{_time(record)} {record.levelname} {record.name}: {record.getMessage()}{facts}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class JsonLines(logging.Formatter):
    """The same as one object."""

    def format(self, record: logging.LogRecord) -> str:
        """Print one record."""
        entry = {
            "timestamp": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
            **_facts(record),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return orjson.dumps(entry, default=str, option=orjson.OPT_NON_STR_KEYS).decode()


def _facts(record: logging.LogRecord) -> dict[str, Any]:
    """Give the id of the request, and what was logged as `extra`."""
    facts = {name: value for name, value in record.__dict__.items() if name not in _NO_FACTS}
    request_id = REQUEST_ID.get()
    return facts if request_id is None else {"request_id": request_id, **facts}


def _time(record: logging.LogRecord) -> str:
    # Without a zone, for it is always this one; `strftime` takes five times as long.
    return datetime.fromtimestamp(record.created, UTC).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"
