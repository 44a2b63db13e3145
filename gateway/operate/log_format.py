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


class Lines(logging.Formatter):
    """A record as one line: JSON of time, level, logger, message and its fields; or text, each field as name=value."""

    def __init__(self, is_text: bool) -> None:
        super().__init__()
        self._is_text = is_text

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        level, message = record.levelname.lower(), record.getMessage()
        fields = {name: value for name, value in vars(record).items() if name not in _STANDARD}
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        if self._is_text:
            return printable(" ".join([at, f"{level:<7}", message, *(f"{n}={_plain(v)}" for n, v in fields.items())]))
        return printable(_json({"time": at, "level": level, "logger": record.name, "message": message, **fields}))


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
    handler.setFormatter(Lines(words == "text"))
    logger = logging.getLogger("taskgate")
    logger.handlers[:] = [handler]
    logger.propagate = False
    level = config.level or ("info" if config.access or config.audit else "warning")
    logger.setLevel(level.upper())
    logging.getLogger().handlers[:] = [handler]  # libraries log from warning up
