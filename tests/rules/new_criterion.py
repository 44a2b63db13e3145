"""Criteria that the gateway does not have, each declared once (CONTRIBUTING, "Where to change what")."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import msgspec
import pytest

from gateway.mcp import jsonrpc, task
from gateway.mcp.task import Task
from gateway.tasks import answer, criteria, cursor
from gateway.tasks.criteria import Criterion
from gateway.tasks.values import NUMBER, Kind, NotAllowed, string, strings


def _read_text(raw: bytes) -> str | None:
    text = string(raw)
    if text is None:
        raise NotAllowed("a text that the status message has in it")
    return text or None


def _in_status_message(text: str, candidate: Task) -> bool:
    message = string(jsonrpc.member(candidate.raw, "statusMessage"))
    return message is not None and text in message


CONTAINS: Final = Criterion(
    "statusMessageContains",
    Kind(_read_text, str),
    "task",
    ("statusMessage", "contains"),
    matches=_in_status_message,
)
NOT: Final = Criterion(
    "statusNot",
    strings("statuses", task.STATUSES.__contains__),
    "status",
    ("statusNot",),
    matches=lambda value, status: status not in value,
)


def _ttl_below(value: float, candidate: Task) -> bool:
    return candidate.ttl_ms is not None and candidate.ttl_ms < value


TTL_BELOW: Final = Criterion("ttlBelow", NUMBER, "task", ("ttl", "below"), matches=_ttl_below)
ALL: Final = (CONTAINS, NOT, TTL_BELOW)


@contextmanager
def declared(*more: Criterion) -> Iterator[None]:
    """As if `CRITERIA` had them as well, and `more`."""
    with pytest.MonkeyPatch.context() as patch:
        for one in (*ALL, *more):
            patch.setitem(criteria.CRITERIA, one.name, one)
        _forget()
        yield
    _forget()


@contextmanager
def withdrawn() -> Iterator[None]:
    """As if `CRITERIA` had them no more."""
    with pytest.MonkeyPatch.context() as patch:
        for one in ALL:
            patch.delitem(criteria.CRITERIA, one.name)
        _forget()
        yield
    _forget()


def _forget() -> None:
    of_params = answer.position_of, answer.ignored_of
    for made in (criteria.names, criteria.defaults, criteria._decoder, cursor._decoder, *of_params):
        made.cache_clear()


def with_members(raw: bytes, **members: object) -> bytes:
    """The JSON of a task, with these members as well."""
    for name, value in members.items():
        raw = jsonrpc.insert(b'{"a":%b}' % raw, ("a",), name, msgspec.json.encode(value))[5:-1]
    return raw
