"""Structured logs: one JSON object a line, on standard error.

In: records of the `taskgate` loggers, with `extra` for what is particular. Out: lines that a log collector reads.
Always: no token, no header field, no body is ever handed to a logger (DESIGN 8).
"""

import logging
import sys
from datetime import UTC, datetime
from typing import Final

import orjson

_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class JsonLines(logging.Formatter):
    """A record as one line of JSON: time, level, logger, message, and what it was given as `extra`."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **{name: value for name, value in vars(record).items() if name not in _STANDARD},
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return orjson.dumps(line, default=str).decode()


def set_up(level: str) -> None:
    """Log to standard error from `level` up."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    logger = logging.getLogger("taskgate")
    logger.handlers[:] = [handler]
    logger.propagate = False
    logger.setLevel(level.upper())
    logging.getLogger().handlers[:] = [handler]  # what libraries have to say, from warning up
