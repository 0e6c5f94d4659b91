"""Log set-up, called by commands only: one line each on stderr, as text or JSON, with the id of the request at hand.

Code logs through the standard library, facts as `extra`; structlog prints. No prompt, token id or key is ever logged.
"""

from __future__ import annotations

import logging
import sys
from typing import Any, Literal

import orjson
import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

LogFormat = Literal["text", "json"]


def configure_logging(log_format: LogFormat) -> None:
    """Write INFO and above to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_formatter(log_format))
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    logging.getLogger("alembic").setLevel(logging.WARNING)  # it tells each step of every start
    logging.getLogger("httpx").setLevel(logging.WARNING)  # it tells each request


def _formatter(log_format: LogFormat) -> logging.Formatter:
    gather: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.ExtraAdder(),
        _without_colours,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    render: Processor = _text
    if log_format == "json":
        render = structlog.processors.JSONRenderer(serializer=_json)
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=gather, processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, render]
    )


def _without_colours(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    """Drop what uvicorn says a second time, for terminals."""
    event.pop("color_message", None)
    return event


def _json(event: EventDict, **_: Any) -> str:
    return orjson.dumps(event, default=str, option=orjson.OPT_NON_STR_KEYS).decode()


def _text(_: WrappedLogger, __: str, event: EventDict) -> str:
    head = f"{event.pop('timestamp')} {event.pop('level').upper()} {event.pop('logger')}: {event.pop('event')}"
    exception = event.pop("exception", None)
    facts = "".join(f" {name}={value}" for name, value in event.items())
    return f"{head}{facts}\n{exception}" if exception else head + facts
