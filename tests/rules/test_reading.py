"""The states of a reader of requests: the table in `http/request_parser.py` is what it does."""

from collections.abc import Callable
from itertools import product
from typing import Final, get_args

import pytest

from gateway.http.request_parser import Reading, RequestReader
from tests.attack.requests import ROWS
from tests.states import changes, in_cell, steps, table

HEAD_BYTES_MAX: Final = 4096
FIELDS_MAX: Final = 50

PART: Final = b"POST / HT"
REST_OF_HEAD: Final = b"TP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
LAST: Final = PART + b"TP/1.1\r\nHost: a\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
BODY: Final = b"1\r\na\r\n0\r\n\r\n"
EMPTY: Final = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
GARBAGE: Final = b"\0\r\n\r\n"

TABLE: Final = table(RequestReader.__doc__, "`close`.\n\n")
STEPS: Final = steps(TABLE, ())

Event = Callable[[RequestReader], object]


def reads(*pieces: bytes) -> Event:
    def happen(reader: RequestReader) -> None:
        for piece in pieces:
            reader.add(piece)
            while reader.pending_bytes:
                reader.read()

    return happen


def either(*pieces: bytes) -> list[Event]:
    return [reads(*pieces), reads(*(bytes([byte]) for byte in b"".join(pieces)))]


# What may happen, by the state in which it can, or for all others.
EVENTS: Final[dict[str, dict[str, list[Event]]]] = {
    "a part of a head": {"HEAD": either(b"TP/1"), "": [*either(PART), *either(b"\r\n" + PART)]},
    "a head is whole": {"HEAD": either(REST_OF_HEAD), "": either(PART + REST_OF_HEAD)},
    "a body ends": {"": either(BODY)},
    "the last body ends": {"": either(BODY)},
    "what came is refused": {"": either(GARBAGE)},
    "it is closed": {"": [RequestReader.close]},
}
WAYS: Final[dict[str, list[Event]]] = {
    "BETWEEN": [*either(), *either(PART + REST_OF_HEAD + BODY), *either(EMPTY), *either(b"\r\n")],
    "HEAD": [*either(PART), *either(PART + REST_OF_HEAD + BODY + PART)],
    "BODY": [*either(PART + REST_OF_HEAD), *either(PART + REST_OF_HEAD + BODY[:4])],
    "OVER": [*either(GARBAGE), *either(LAST + BODY), RequestReader.close],
}  # fmt: skip


def reader_in(way: Event) -> RequestReader:
    reader = RequestReader(HEAD_BYTES_MAX, FIELDS_MAX)
    way(reader)
    return reader


def test_the_table_names_every_state_and_event() -> None:
    assert list(TABLE) == list(WAYS) == list(get_args(Reading))
    assert list(TABLE["BODY"]) == list(EVENTS)


@pytest.mark.parametrize(("state", "event"), [(s, e) for s, e in product(WAYS, EVENTS) if TABLE[s][e] != "-"])
def test_the_table_is_what_happens(state: str, event: str) -> None:
    ways, found = WAYS[state], set()
    if (state, event) == ("BODY", "the last body ends"):
        ways = either(LAST)
    elif (state, event) == ("BODY", "a body ends"):
        ways = either(PART + REST_OF_HEAD)
    for way, happens in product(ways, EVENTS[event].get(state) or EVENTS[event][""]):
        reader = reader_in(way)
        assert reader.state == state
        happens(reader)
        found.add(reader.state)
    assert found == in_cell(TABLE[state][event])


def test_whatever_hostile_clients_send_leads_only_where_the_table_says() -> None:
    """Byte by byte, each read is one step at most, but that a request without a body is over with its head."""
    seen = set[tuple[str, str]]()
    for row in ROWS:
        reader = RequestReader(HEAD_BYTES_MAX, FIELDS_MAX)
        for byte in b"".join(piece for piece in row.sent if isinstance(piece, bytes))[: 2 * HEAD_BYTES_MAX]:
            reader.add(bytes([byte]))
            before = reader.state
            events = reader.read() if reader.pending_bytes else []
            if len(events) < 2:
                seen.add((before, reader.state))
    assert changes(seen) == changes(STEPS) - {("BETWEEN", "BODY")}  # no head has one byte
