"""Random mutations of the rows of both tables, with victims beside and behind them, whose exchanges stay untouched.

The fate of the hostile exchange is left open. ATTACK_EXAMPLES sets the mutations of each table; the default is 100.
"""

import asyncio
import os
from itertools import pairwise
from typing import Final

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.attack.requests import ROWS as REQUESTS
from tests.attack.responses import ROWS as RESPONSES
from tests.attack.rows import Pieces
from tests.attack.stage import Stage

EXAMPLES: Final = int(os.environ.get("ATTACK_EXAMPLES", "100"))
BYTES_MAX: Final = 20_000  # of a row that is mutated: larger ones say nothing more
PARTS: Final = 1 << 12  # places are drawn in parts of the whole

_bytes = st.sampled_from(
    [
        *(b"\r\n", b"\r\n\r\n", b"\n", b"\r", b" ", b"\t", b"\0", b":", b",", b";", b"0\r\n\r\n", b"3\r\nabc\r\n"),
        b"\xff",
        *(b"Content-Length: 3\r\n", b"Transfer-Encoding: chunked\r\n", b"Connection: close\r\n", b"Connection: x\r\n"),
        *(b"GET /smuggled HTTP/1.1\r\nHost: localhost\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nPOISON"),
        *(b"Upgrade: h2c\r\n", b"Expect: 100-continue\r\n", b"Host: evil\r\n", b"X: a\r\n", b"0", b"9", b"HTTP/1.0"),
        b"\xa0",
    ]
)
_places = st.integers(0, PARTS)
# Of a place: bytes go in, some go out, some come twice, or the rest is cut off.
_mutations = st.lists(st.tuples(st.sampled_from(["in", "out", "twice", "cut"]), _places, _places, _bytes), max_size=3)
_cuts = st.lists(_places, max_size=3)


def _whole(pieces: Pieces) -> bytes:
    return b"".join(piece for piece in pieces if isinstance(piece, bytes))[:BYTES_MAX]


_asked = st.sampled_from(sorted({_whole(row.sent) for row in REQUESTS}))
_answered = st.sampled_from(sorted({_whole(row.sent) for row in RESPONSES}))
_ways = st.sampled_from(sorted({row.ask for row in RESPONSES if len(row.ask) == 1}, key=_whole))


def _mutated(data: bytes, mutations: list[tuple[str, int, int, bytes]]) -> bytes:
    for what, place, other, inserted in mutations:
        at, to = sorted((place * len(data) // PARTS, other * len(data) // PARTS))
        if what == "in":
            data = data[:at] + inserted + data[at:]
        elif what == "out":
            data = data[:at] + data[min(to, at + 8) :]
        elif what == "twice":
            data = data[:to] + data[at:to] + data[to:]
        else:
            data = data[:to]
    return data


def _split(data: bytes, cuts: list[int]) -> Pieces:
    edges = sorted({0, len(data), *(cut * len(data) // PARTS for cut in cuts)})
    pieces: list[bytes | float] = []
    for start, end in pairwise(edges):
        pieces += [data[start:end], 0.0005]
    return tuple(pieces[:-1])


_thorough = settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
    phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
)


@_thorough
@given(data=_asked, mutations=_mutations, cuts=_cuts)
def test_no_request_hurts_a_neighbour(
    stage: Stage, runner: asyncio.Runner, data: bytes, mutations: list[tuple[str, int, int, bytes]], cuts: list[int]
) -> None:
    assert not runner.run(stage.anything(_split(_mutated(data, mutations), cuts)))


@_thorough
@given(
    ask=_ways, data=_answered, mutations=_mutations, cuts=_cuts, then=st.sampled_from(["open", "open", "fin", "rst"])
)
def test_no_response_hurts_a_neighbour(
    stage: Stage,
    runner: asyncio.Runner,
    ask: Pieces,
    data: bytes,
    mutations: list[tuple[str, int, int, bytes]],
    cuts: list[int],
    then: str,
) -> None:
    assert not runner.run(stage.anything(ask, (_split(_mutated(data, mutations), cuts), then)))
