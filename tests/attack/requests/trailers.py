"""Trailers: those that frame, route or authenticate are removed, others pass (RFC 9110, 6.5.1)."""

from typing import Final

from tests.attack.judge import NEVER_TRAILERS
from tests.attack.requests.limits import FIELDS_MAX
from tests.attack.rows import CHUNKED, WAYS, Pairs, Request, Seen, held, passes, refused

_VALUES: Final = {
    b"connection": b"close", b"content-length": b"5", b"transfer-encoding": b"chunked", b"host": b"evil",
    b"authorization": b"Bearer stolen", b"upgrade": b"h2c", b"expect": b"100-continue",
}  # fmt: skip
PASSABLE: Final[dict[str, Pairs]] = {
    "digest": ((b"digest", b"sha-256=x"),), "server-timing": ((b"server-timing", b"a;dur=1"),),
    "empty-value": ((b"x-t", b""),), "repeated": ((b"x-t", b"1"), (b"x-t", b"2")), "latin-1": ((b"x-t", b"\xe9"),),
    "request-in-a-value": ((b"x-t", b"GET /smuggled HTTP/1.1"),),
    "fifty": tuple((b"x-%d" % n, b"a") for n in range(50)), "as-many-as-allowed": ((b"x-t", b""),) * FIELDS_MAX,
}  # fmt: skip
BAD: Final = {
    "space-before-colon": b"X : a", "no-colon": b"X", "empty-name": b": a",
    "a-request": b"GET /smuggled HTTP/1.1\r\nHost: localhost", "nul": b"X: a\0", "bare-lf": b"X: a\nY: b",
    "bare-cr": b"X: a\rY: b", "folded": b"X: a\r\n b", "folded-first": b" X: a", "control": b"X: a\x01",
    "space-in-name": b"X Y: a", "bad-name": b"X(: a", "ends-with-lf": b"X: a\n\r\n",
}  # fmt: skip
# llhttp obeys them: `Connection: close` as a trailer had the server's connection pooled dead.
_OBEYED: Final = (b"content-length", b"transfer-encoding", b"connection", b"proxy-connection", b"upgrade")


def with_trailers(*lines: bytes) -> bytes:
    """A body in chunks with these lines behind it."""
    return b"3\r\nabc\r\n" + b"\r\n".join([b"0", *lines, b"", b""])


KEPT: Final[Pairs] = ((b"x-before", b"1"), (b"x-behind", b"2"))


def around(name: bytes) -> bytes:
    """A body in chunks with a trailer of that name between those that are KEPT."""
    return with_trailers(b"X-Before: 1", name + b": " + _VALUES.get(name, b"x"), b"X-Behind: 2")


def _never(way: str, name: bytes) -> Request:
    send, method = WAYS[way]
    row, data = f"{way}-never-{name.decode()}", send(CHUNKED, b"Trailer: " + name, body=around(name))
    if name in _OBEYED:
        return refused(row, data, cut=way == "streamed")
    return passes(row, data, Seen(method, body=b"abc", trailers=KEPT))


# The names that a reader of trailers may obey, on either way; the rest of the list on one.
_BOTH_WAYS: Final = (
    b"connection", b"content-length", b"transfer-encoding", b"host", b"authorization", b"upgrade", b"expect",
)  # fmt: skip

ROWS: Final[list[Request]] = [
    *(_never("held", name) for name in NEVER_TRAILERS),
    *(_never("streamed", name) for name in _BOTH_WAYS),
    *(
        passes(
            f"{way}-passes-{name}",
            send(CHUNKED, body=with_trailers(*(key + b": " + value for key, value in pairs))),
            Seen(method, body=b"abc", trailers=pairs),
        )
        for way, (send, method) in WAYS.items()
        for name, pairs in PASSABLE.items()
    ),
    *(
        refused(f"{way}-{name}", send(CHUNKED, body=with_trailers(line)), cut=way == "streamed")
        for way, (send, _) in WAYS.items()
        for name, line in BAD.items()
    ),
    *(
        refused(f"{way}-{name}", send(CHUNKED, body=with_trailers(*lines)), *statuses, cut=way == "streamed")
        for way, (send, _) in WAYS.items()
        for name, statuses, lines in (
            ("upper-case-connection", (), [b"CONNECTION: CLOSE", b"X-T: 1"]),
            ("too-large", (400, 413, 431), [b"X: " + b"a" * 20_000]),
            ("too-many", (431,), [b"X:"] * (FIELDS_MAX + 1)),
        )
    ),
    passes(
        "named-by-connection",
        held(CHUNKED, b"Connection: x-t", body=with_trailers(b"X-T: 1")),
        Seen(b"POST", body=b"abc"),
    ),
]
