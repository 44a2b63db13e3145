"""Random filtered queries of five kinds, the same for an index that is asked directly and for a gateway over HTTP.

Every second one goes on behind a random place, as a requestor does that follows cursors.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeAlias

import orjson

from gateway.demo.legacy_server import HISTORY_DAYS
from gateway.mcp.task import STATUSES, Place, parse_instant
from gateway.query import criteria, cursor
from gateway.query.criteria import Query
from tests.bench.processes import BenchFailed

PER_KIND: Final = 200

_Params: TypeAlias = dict[str, Any]


@dataclass(frozen=True)
class Question:
    """A query, the place that its page follows, and the parameters that say the same."""

    query: Query
    after: Place | None
    params: _Params


def questions(kind: str, until: datetime, seed: int = 1904) -> list[Question]:
    rng = random.Random(f"{seed}/{kind}")
    orders = [KINDS[kind](rng, until) | {"order": rng.choice(("asc", "desc"))} for _ in range(PER_KIND)]
    return [_question(rng, params, until, number % 2 == 1) for number, params in enumerate(orders)]


def _question(rng: random.Random, params: _Params, until: datetime, behind: bool) -> Question:
    query = criteria.read(criteria.params(orjson.dumps(params)))
    if query is None:
        raise BenchFailed(f"{params} name no criterion")
    if not behind:
        return Question(query, None, params)
    at = parse_instant(_text(_instant(rng, until)))
    assert at is not None
    after = (at, "")
    return Question(query, after, {**params, "cursor": cursor.encode(cursor.Position(query, after))})


KINDS: Final[dict[str, Callable[[random.Random, datetime], _Params]]] = {
    "status": lambda rng, _: {"status": rng.sample(STATUSES, rng.choice((1, 2)))},
    "created, in that order": lambda rng, until: {**_range(rng, until, "created"), "orderBy": "createdAt"},
    "created, by last update": lambda rng, until: _range(rng, until, "created"),
    "created and last update": lambda rng, until: _range(rng, until, "created") | _range(rng, until, "lastUpdated"),
    "none, an order alone": lambda rng, _: {"orderBy": rng.choice(("createdAt", "lastUpdatedAt"))},
}


def _range(rng: random.Random, until: datetime, prefix: str) -> _Params:
    first, last = sorted((_instant(rng, until), _instant(rng, until)))
    return {f"{prefix}After": _text(first), f"{prefix}Before": _text(last)}


def _instant(rng: random.Random, until: datetime) -> datetime:
    return until - rng.random() * timedelta(days=HISTORY_DAYS)


def _text(instant: datetime) -> str:
    return instant.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
