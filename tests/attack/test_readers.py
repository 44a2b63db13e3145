"""The readers notice what they must: a difference between them, a message that is not whole, an unasked answer."""

import pytest

from tests.attack.readers import (
    Reading,
    differences,
    requests_by_llhttp,
    requests_by_ours,
    responses_by_llhttp,
    responses_by_ours,
)
from tests.attack.rows import get, ok, raw

_CHUNKED = b"Transfer-Encoding: chunked"
_OK = ok(b"Content-Length: 2", body=b"ok")


def _requests(data: bytes) -> tuple[Reading, Reading]:
    return requests_by_llhttp(data), requests_by_ours(data)


def _responses(data: bytes, *methods: bytes, ended: bool = False) -> tuple[Reading, Reading]:
    return responses_by_llhttp(data, methods, ended), responses_by_ours(data, methods, ended)


def test_they_agree_on_what_is_plain() -> None:
    chunked = raw(b"POST /a HTTP/1.1", _CHUNKED, body=b"2\r\nab\r\n0\r\nX-T: 1\r\n\r\n")
    for reading in (readings := _requests(chunked + get(target=b"/b"))):
        assert [message.start for message in reading.messages] == [b"POST /a", b"GET /b"]
        assert (reading.messages[0].body, reading.messages[0].trailers) == (b"ab", ((b"x-t", b"1"),))
        assert not reading.rest
    assert not differences(*readings)


@pytest.mark.parametrize(
    "data",
    [
        raw(b"POST / HTTP/1.1", b"Content-Length: 3", b"Content-Length: 3", body=b"abc"),
        raw(b"POST / HTTP/1.1", b"Content-Length: 3", _CHUNKED, body=b"0\r\n\r\n"),
        raw(b"BREW / HTTP/1.1"),
        raw(b"GET / HTTP/1.1", b"X : a"),
        raw(b"POST / HTTP/1.1", _CHUNKED, body=b"0\r\nConnection: close\r\n\r\n") + get(),
        get(b"Connection: close") + get(),
    ],
)
def test_a_request_that_one_of_them_reads_otherwise_is_told(data: bytes) -> None:
    assert differences(*_requests(data))


def test_half_a_request_is_no_request() -> None:
    for reading in _requests(get() + get()[:-2]):
        assert len(reading.messages) == 1
        assert reading.rest


def test_a_response_to_head_has_no_body() -> None:
    hint = b"HTTP/1.1 103 Hint\r\n\r\n"
    readings = _responses(hint + ok(b"Content-Length: 9") + _OK, b"HEAD", b"GET")
    assert not differences(*readings)
    assert [(m.status, m.body) for m in readings[0].messages] == [(103, b""), (200, b""), (200, b"ok")]


def test_the_end_of_the_connection_ends_what_nothing_else_ends() -> None:
    for reading in _responses(ok(body=b"ok"), b"GET", ended=True):
        assert [m.body for m in reading.finals] == [b"ok"]
    for data in (ok(body=b"ok"), ok(b"Content-Length: 3", body=b"ok"), ok(_CHUNKED, body=b"2\r\nok\r\n")):
        for reading in _responses(data, b"GET", ended=data != ok(body=b"ok")):
            assert reading.rest
            assert not reading.finals


@pytest.mark.parametrize("extra", [_OK, b"P", b"HTTP/1.1 200 OK\r\n"])
def test_what_nobody_asked_for_is_told(extra: bytes) -> None:
    assert differences(*_responses(_OK + extra, b"GET"))
