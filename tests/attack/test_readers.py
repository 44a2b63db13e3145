"""The reader notices what it must: what can be read in two ways, a message that is not whole, an unasked answer."""

import pytest

from tests.attack.readers import read_requests, read_responses
from tests.attack.rows import get, ok, raw

_CHUNKED = b"Transfer-Encoding: chunked"
_OK = ok(b"Content-Length: 2", body=b"ok")


def test_what_is_plain_is_read() -> None:
    chunked = raw(b"POST /a HTTP/1.1", _CHUNKED, body=b"2\r\nab\r\n0\r\nX-T: 1\r\n\r\n")
    reading = read_requests(chunked + get(target=b"/b"))
    assert [message.start for message in reading.messages] == [b"POST /a", b"GET /b"]
    assert (reading.messages[0].body, reading.messages[0].trailers) == (b"ab", ((b"x-t", b"1"),))
    assert (reading.rest, reading.fault) == (False, "")


@pytest.mark.parametrize(
    "data",
    [
        raw(b"POST / HTTP/1.1", b"Content-Length: 3", b"Content-Length: 3", body=b"abc"),
        raw(b"POST / HTTP/1.1", b"Content-Length: 3", _CHUNKED, body=b"0\r\n\r\n"),
        raw(b"GET / HTTP/1.1", b"X : a"),
        get().replace(b"\r\n", b"\n") + b"\r\n\r\n",
        raw(b"POST / HTTP/1.1", _CHUNKED, body=b"3\r\nabcd\r\n0\r\n\r\n"),
        raw(b"POST / HTTP/1.1", _CHUNKED, body=b"0\r\nX : a\r\n\r\n"),
        get() + b"garbage\r\n\r\n",
    ],
)
def test_a_request_that_is_malformed_is_told(data: bytes) -> None:
    assert read_requests(data).fault


def test_half_a_request_is_no_request() -> None:
    reading = read_requests(get() + get()[:-2])
    assert (len(reading.messages), reading.rest) == (1, True)


def test_a_response_to_head_has_no_body() -> None:
    hint = b"HTTP/1.1 103 Hint\r\n\r\n"
    reading = read_responses(hint + ok(b"Content-Length: 9") + _OK, [b"HEAD", b"GET"])
    assert not reading.fault
    assert [(m.status, m.body) for m in reading.messages] == [(103, b""), (200, b""), (200, b"ok")]


def test_the_end_of_the_connection_ends_what_nothing_else_ends() -> None:
    assert [m.body for m in read_responses(ok(body=b"ok"), [b"GET"], ended=True).finals] == [b"ok"]
    for data in (ok(body=b"ok"), ok(b"Content-Length: 3", body=b"ok"), ok(_CHUNKED, body=b"2\r\nok\r\n")):
        reading = read_responses(data, [b"GET"], ended=data != ok(body=b"ok"))
        assert reading.rest and not reading.finals


@pytest.mark.parametrize("extra", [_OK, b"P", b"HTTP/1.1 200 OK\r\n"])
def test_what_nobody_asked_for_is_told(extra: bytes) -> None:
    assert read_responses(_OK + extra, [b"GET"]).fault
