"""Answers that cannot have a body, by their status or their request, and have one (RFC 9112, 6.3)."""

from typing import Final

from tests.attack.rows import BROKEN, CHUNKED, CUT, POISON, Got, Response, answer, asked, gives, ok

_BEHIND: Final = {
    "length-only": (b"Content-Length: 6", b""), "length-and-body": (b"Content-Length: 6", b"POISON"),
    "length-and-response": (b"Content-Length: %d" % len(POISON), POISON), "chunked-only": (CHUNKED, b""),
    "chunked-and-half-a-size": (CHUNKED, b"6"), "chunked-and-body": (CHUNKED, b"6\r\nPOISON\r\n0\r\n\r\n"),
    "chunked-and-last": (CHUNKED, b"0\r\n\r\n"), "no-framing": (b"X: a", b""),
    "no-framing-and-body": (b"X: a", b"POISON"), "no-framing-and-response": (b"X: a", POISON),
    "length-zero-and-response": (b"Content-Length: 0", POISON),
}  # fmt: skip
_HEAD: Final = asked(b"HEAD")

ROWS: Final[list[Response]] = [
    *(
        gives(f"head-{name}", ok(line, body=body), Got(200, b""), BROKEN, CUT, ask=_HEAD, alone=bool(body))
        for name, (line, body) in _BEHIND.items()
    ),
    *(
        gives(
            f"{status}-{name}",
            answer(b"HTTP/1.1 %d None" % status, line, body=body),
            *(Got(status, b""), BROKEN, CUT),
            alone=bool(body),
        )
        for status in (204, 304)
        for name, (line, body) in _BEHIND.items()
    ),
    gives(
        "205-with-a-body",
        answer(b"HTTP/1.1 205 Reset", b"Content-Length: 2", body=b"ok"),
        Got(205, b"ok"),
        Got(205, b""),
        BROKEN,
    ),
    gives("head-404", answer(b"HTTP/1.1 404 No", b"Content-Length: 10"), Got(404, b""), ask=_HEAD),
    gives("head-204", answer(b"HTTP/1.1 204 No"), Got(204, b""), ask=_HEAD),
    gives("head-until-the-end", ok(b"Connection: close"), Got(200, b""), ask=_HEAD, then="fin"),
    gives("head-of-1.0", answer(b"HTTP/1.0 200 OK", b"Content-Length: 5"), Got(200, b""), ask=_HEAD),
    gives("204-of-post", answer(b"HTTP/1.1 204 None", body=POISON), Got(204, b""), BROKEN, CUT, ask=asked(b"POST")),
    gives("204-body-later", (answer(b"HTTP/1.1 204 None"), 0.003, b"POISON"), Got(204, b"")),
    gives("304-response-later", (answer(b"HTTP/1.1 304 None"), 0.003, POISON), Got(304, b"")),
    gives("head-response-later", (ok(b"Content-Length: 6"), 0.003, POISON), Got(200, b""), ask=_HEAD),
]
