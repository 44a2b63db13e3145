"""Several requests on one connection, and what tries to be one more (RFC 9112, 9.3.2 and 11.2)."""

from typing import Final

from tests.attack.rows import CHUNKED, PING, Request, Seen, bad_behind, get, held, passes, streamed

_SMUGGLED: Final = get(target=b"/smuggled")
_ABC: Final = b"3\r\nabc\r\n0\r\n\r\n"
_POSTED: Final = Seen(b"POST", body=PING)
_POST: Final = held(b"Content-Length: %d" % len(PING), body=PING)
_WHO: Final = b"Authorization: a"
_PAIR: Final = (b"authorization", b"a")


ROWS: Final[list[Request]] = [
    passes(
        "twenty", b"".join(get(target=b"/%d" % n) for n in range(20)), *(Seen(target=b"/%d" % n) for n in range(20))
    ),
    passes(
        "every-framing",
        _POST + held(CHUNKED, body=_ABC) + get(method=b"HEAD") + streamed(CHUNKED, body=_ABC) + _POST,
        *(_POSTED, Seen(b"POST", body=b"abc"), Seen(b"HEAD"), Seen(b"PUT", body=b"abc"), _POSTED),
    ),
    passes("empty-line-between", get() + b"\r\n" + get(target=b"/b"), Seen(), Seen(target=b"/b")),
    passes("empty-line-behind-a-body", _POST + b"\r\n" + get(target=b"/b"), _POSTED, Seen(target=b"/b")),
    passes("the-same-twice", _POST + _POST, _POSTED, _POSTED),
    passes("different-tokens", get(_WHO) + get(), Seen(has=(_PAIR,)), Seen(lacks=(b"authorization",))),
    bad_behind("garbage-behind", get() + b"garbage\r\n\r\n", Seen()),
    bad_behind("bytes-behind-a-length", _POST + b"xyz\r\n\r\n", _POSTED),
    bad_behind("bytes-behind-the-last-chunk", held(CHUNKED, body=_ABC) + b"xyz\r\n\r\n", Seen(b"POST", body=b"abc")),
    bad_behind("two-lengths-behind", get() + held(b"Content-Length: 3", b"Content-Length: 4", body=b"abcd"), Seen()),
    bad_behind("good-between-bad", get() + get(b"X : a") + _SMUGGLED, Seen()),
    bad_behind("named-authorization-behind", get() + get(_WHO, b"Connection: authorization"), Seen(), keeps=True),
    *(
        passes(
            f"a-request-as-the-body-of-{method.decode()}",
            get(b"Content-Length: %d" % len(_SMUGGLED), method=method, body=_SMUGGLED),
            Seen(method, body=_SMUGGLED),
        )
        for method in (b"GET", b"HEAD")
    ),
    passes(
        "pause-in-a-size-line",
        (streamed(CHUNKED, body=b"3"), 0.002, b"\r", 0.002, b"\nabc\r", 0.002, b"\n0\r\n\r", 0.002, b"\n"),
        Seen(b"PUT", body=b"abc"),
    ),
]
