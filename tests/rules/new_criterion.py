"""Criteria that the gateway will not get, each declared once (CONTRIBUTING, "Where to change what")."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import pytest

from gateway.mcp import jsonrpc, task
from gateway.query import criteria, cursor
from gateway.query.criteria import Criterion, Kind, NotAllowed, strings
from gateway.refresh import answer


def _read_text(raw: bytes) -> str | None:
    text = jsonrpc.text(raw)
    if text is None:
        raise NotAllowed("a text that the method begins with")
    return text or None


PREFIX: Final = Criterion(
    "testOnlyMethodPrefix",
    Kind(_read_text, str),
    "method",
    ("testOnlyMethodPrefix",),
    matches=lambda text, method: method is None or method.startswith(text),
)
NOT: Final = Criterion(
    "testOnlyStatusNot",
    strings("statuses", task.STATUSES.__contains__),
    "status",
    ("testOnlyStatusNot",),
    matches=lambda value, status: status not in value,
)
ALL: Final = (PREFIX, NOT)


@contextmanager
def declared() -> Iterator[None]:
    """As if `CRITERIA` had them as well."""
    with pytest.MonkeyPatch.context() as patch:
        for one in ALL:
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
    of_params = answer.position_of, answer.ignored_of, answer.misspelt_of
    for made in (criteria.names, criteria.defaults, criteria._decoder, cursor._decoder, *of_params):
        made.cache_clear()
