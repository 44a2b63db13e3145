"""Structured logs: a record is one line of printable text, without a token, query string or body (DESIGN 8.7)."""

import json
import logging
import re
import sys
from datetime import UTC, datetime
from typing import Final

import orjson

from gateway.config import Log, StdioLog
from gateway.errors import printable

_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_BARE: Final = re.compile(r"[!#-<>-~]+")  # a value that text shows without quotes


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")


def _fields(record: logging.LogRecord) -> dict[str, object]:
    found = {name: value for name, value in vars(record).items() if name not in _STANDARD}
    if record.exc_info:
        found["exception"] = logging.Formatter().formatException(record.exc_info)
    return found


class JsonLines(logging.Formatter):
    """A record as one line of JSON: time, level, logger, message, and its fields."""

    def format(self, record: logging.LogRecord) -> str:
        line = {"level": record.levelname.lower(), "logger": record.name, "message": record.getMessage()}
        return printable(_json({"time": _time(record), **line, **_fields(record)}))


class TextLines(logging.Formatter):
    """A record as one line for people: time, level, message, then name=value for each field."""

    def format(self, record: logging.LogRecord) -> str:
        words = [_time(record), f"{record.levelname.lower():<7}", record.getMessage()]
        words += [f"{name}={_plain(value)}" for name, value in _fields(record).items()]
        return printable(" ".join(words))


def _plain(value: object) -> str:
    text = value if isinstance(value, str) else _json(value)
    return text if _BARE.fullmatch(text) else _json(text)


def _json(value: object) -> str:
    try:
        return orjson.dumps(value, default=str).decode()
    except TypeError:  # a name of bytes that are no UTF-8 is no text: it has lone surrogates
        return json.dumps(value, default=str)


def set_up(config: Log | StdioLog) -> None:
    file = config.file if isinstance(config, StdioLog) else None
    handler = logging.StreamHandler(sys.stderr) if file is None else logging.FileHandler(file, encoding="utf-8")
    words = config.format or ("text" if file is None and sys.stderr.isatty() else "json")
    handler.setFormatter(TextLines() if words == "text" else JsonLines())
    logger = logging.getLogger("taskgate")
    logger.handlers[:] = [handler]
    logger.propagate = False
    level = config.level or ("info" if config.access or config.audit else "warning")
    logger.setLevel(level.upper())
    logging.getLogger().handlers[:] = [handler]  # libraries log from warning up
