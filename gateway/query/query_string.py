"""Cursors that spell criteria as a query string: `taskgate:?status=working,failed&createdAfter=2026-11-20T00:00:00Z`.

Typed SDKs drop unknown parameters, but send every cursor as it is: so their users can filter (DESIGN 5.1). A list is
split at commas; its name may also be repeated. Then names and values are percent-decoded; `+` is a plus.
"""

import re
from binascii import a2b_qp
from typing import Final, NoReturn

import msgspec

from gateway.query.criteria import (
    CRITERIA_BYTES_MAX,
    BadQuery,
    Fault,
    Given,
    Query,
    fault,
    names,
    no_criterion,
    query_of,
)
from gateway.query.values import FAULTS_MAX, LIST_ITEMS_MAX

BEGINNING: Final = "taskgate:"
_ALLOWED: Final = "criteria as a query string, such as `taskgate:?status=working,failed&order=asc`"
_VALUES_MAX: Final = 2 * LIST_ITEMS_MAX
_SINGLE_MAX: Final = 20  # values of criteria that are no lists: each may be a fault
_NO_ESCAPE: Final = re.compile("%(?![0-9A-Fa-f]{2})")


def read(text: str) -> Query:
    """The query that a cursor spells. Raises BadQuery."""
    beginning, mark, pairs = text.partition("?")
    if beginning + mark != BEGINNING + "?":
        refuse(text, _ALLOWED)
    return read_pairs(pairs, "cursor")


def read_pairs(pairs: str, where: str) -> Query:
    """The query that the pairs of a query string spell; `where` they stand. Raises BadQuery."""
    if len(pairs) > CRITERIA_BYTES_MAX:
        refuse(f"{len(pairs)} characters", f"no more than {CRITERIA_BYTES_MAX} characters", where)
    if (count := 1 + pairs.count("&") + pairs.count(",")) > _VALUES_MAX:
        refuse(f"{count} values", f"no more than {_VALUES_MAX} values", where)
    faults: list[Fault] = []
    single: list[Given] = []
    lists: dict[str, list[str]] = {}
    for pair in filter(None, pairs.split("&")):
        raw_name, _, value = pair.partition("=")
        name = _decoded(raw_name, where)
        criterion = names().get(name)
        if criterion is None:
            faults.append(no_criterion(f"{where}.", name, msgspec.json.encode(_decoded(value, where))))
        elif criterion.kind.is_list:
            lists.setdefault(name, []).extend(_decoded(one, where) for one in (value.split(",") if value else ()))
        else:
            single.append((f"{where}.{name}", criterion, msgspec.json.encode(_decoded(value, where))))
        if len(faults) == FAULTS_MAX:
            raise BadQuery(faults)
        if len(single) > _SINGLE_MAX:
            refuse(pairs, f"no more than {_SINGLE_MAX} values of criteria that are no lists", where)
    listed = [(f"{where}.{name}", names()[name], msgspec.json.encode(items)) for name, items in lists.items()]
    return query_of([*listed, *single], faults) or Query()


def _decoded(text: str, where: str) -> str:
    if "%" not in text:
        return text
    allowed = "percent-encoded UTF-8, in which `%25` stands for a percent sign"
    if _NO_ESCAPE.search(text) is not None:
        refuse(text, allowed, where)
    try:
        # Quoted-printable, which is decoded in C: `unquote` takes ten times as long.
        return a2b_qp(text.replace("=", "=3D").replace("%", "=").encode()).decode()
    except UnicodeError:
        refuse(text, allowed, where)


def refuse(given: str, allowed: str, where: str = "cursor") -> NoReturn:
    """Raises BadQuery: a cursor, or a part of it, or words for it, is not what is allowed."""
    raise BadQuery([fault(where, given.encode("utf-8", "backslashreplace"), allowed)])
