"""What ends a body, and answers that say it twice (RFC 9112, 6.3)."""

from typing import Final

from tests.attack.rows import BROKEN, CUT, Got, Response, gives, ok

_CHUNKED: Final = b"Transfer-Encoding: chunked"
_BODY: Final = b"2\r\nok\r\n0\r\n\r\n"
_OK: Final = Got(200, b"ok")
_LENGTHS: Final = {
    "plus": b"+2",
    "minus": b"-2",
    "hexadecimal": b"0x2",
    "fraction": b"2.0",
    "list-of-others": b"2, 3",
    "two-numbers": b"2 3",
    "semicolon": b"2;",
    "quoted": b'"2"',
    "letters": b"two",
    "empty": b"",
    "latin-1-digit": b"\xb2",
    "2-to-the-64-and-2": b"18446744073709551618",
    "30-nines": b"9" * 30,
}
_TWO_LENGTHS: Final = {
    "others": (b"Content-Length: 2", b"Content-Length: 3"),
    "shorter-first": (b"Content-Length: 0", b"Content-Length: 2"),
    "one-empty": (b"Content-Length: 2", b"Content-Length:"),
    "one-bad": (b"Content-Length: 2", b"Content-Length: x"),
}
_CONFLICTS: Final = {
    "length-first": (b"Content-Length: 2", _CHUNKED),
    "length-behind": (_CHUNKED, b"Content-Length: 2"),
    "length-zero": (b"Content-Length: 0", _CHUNKED),
    "length-of-the-whole": (b"Content-Length: %d" % len(_BODY), _CHUNKED),
    "length-and-gzip-chunked": (b"Content-Length: 2", b"Transfer-Encoding: gzip, chunked"),
    "length-and-identity": (b"Content-Length: 12", b"Transfer-Encoding: identity"),
}
# Readers differ on all of these: nobody may get a body that another would read in another way.
_CODINGS: Final = {
    "empty": b"",
    "comma-behind": b"chunked,",
    "comma-before": b",chunked",
    "twice": b"chunked, chunked",
    "identity": b"identity",
    "identity-before": b"identity, chunked",
    "quoted": b'"chunked"',
    "parameter": b"chunked;q=1",
    "vertical-tab": b"\x0bchunked",
    "two-words": b"x chunked",
}
# Legal, though few readers know them: what is encoded passes as it is.
_UNUSUAL: Final = {
    "gzip": (b"gzip", _BODY),
    "gzip-behind": (b"chunked, gzip", _BODY),
    "gzip-before": (b"gzip, chunked", b"ok"),
    "unknown": (b"xchunked", _BODY),
}

ROWS: Final[list[Response]] = [
    *(
        gives(f"length-{name}", ok(b"Content-Length: " + v, body=b"ok"), BROKEN, then="fin")
        for name, v in _LENGTHS.items()
    ),
    *(gives(f"lengths-{name}", ok(*lines, body=b"ok"), BROKEN) for name, lines in _TWO_LENGTHS.items()),
    gives("lengths-equal", ok(b"Content-Length: 2", b"Content-Length: 2", body=b"ok"), BROKEN, _OK),
    gives("length-list-of-equals", ok(b"Content-Length: 2, 2", body=b"ok"), BROKEN, _OK),
    gives("length-leading-zeros", ok(b"Content-Length: 0002", body=b"ok"), BROKEN, _OK),
    gives("length-space-before-colon", ok(b"Content-Length : 2", body=b"ok"), BROKEN),
    *(gives(f"cl-te-{name}", ok(*lines, body=_BODY), BROKEN, CUT, _OK) for name, lines in _CONFLICTS.items()),
    *(
        gives(f"coding-{name}", ok(b"Transfer-Encoding: " + value, body=_BODY), BROKEN, CUT, _OK, then="fin")
        for name, value in _CODINGS.items()
    ),
    *(
        gives(
            f"coding-{name}",
            ok(b"Transfer-Encoding: " + value, body=_BODY),
            *(BROKEN, CUT, Got(200, body)),
            then="fin",
        )
        for name, (value, body) in _UNUSUAL.items()
    ),
    gives("codings-in-two-fields", ok(_CHUNKED, _CHUNKED, body=_BODY), BROKEN, CUT, _OK, then="fin"),
    gives(
        "codings-identity-first", ok(b"Transfer-Encoding: identity", _CHUNKED, body=_BODY), BROKEN, CUT, _OK, then="fin"
    ),
    gives("codings-first-empty", ok(b"Transfer-Encoding:", _CHUNKED, body=_BODY), BROKEN, CUT, _OK, then="fin"),
    gives("coding-space-before-colon", ok(b"Transfer-Encoding : chunked", body=_BODY), BROKEN, then="fin"),
    gives("coding-folded", ok(b"Transfer-Encoding:\r\n chunked", body=_BODY), BROKEN, _OK, then="fin"),
    gives("length-shorter-than-the-body", ok(b"Content-Length: 2", body=b"okPOISON"), _OK, BROKEN, CUT),
    gives("length-longer-than-the-body", ok(b"Content-Length: 9", body=b"ok"), CUT, BROKEN, then="fin"),
    gives("length-zero-and-a-body", ok(b"Content-Length: 0", body=b"POISON"), Got(200, b""), BROKEN, CUT),
    gives("length-of-a-petabyte", ok(b"Content-Length: 1000000000000000", body=b"ok"), CUT, BROKEN, then="fin"),
    gives("until-the-end", ok(body=b"ok"), _OK, then="fin"),
    gives("until-the-end-keep-alive", ok(b"Connection: keep-alive", body=b"ok"), _OK, then="fin"),
    gives("until-the-end-looks-chunked", ok(body=_BODY), Got(200, _BODY), then="fin"),
    gives(
        "until-the-end-is-a-response", ok(body=ok(b"Content-Length: 0")), Got(200, ok(b"Content-Length: 0")), then="fin"
    ),
    gives("until-the-reset", ok(body=b"ok"), CUT, BROKEN, then="rst"),
    gives("close-with-a-length", ok(b"Content-Length: 2", b"Connection: close", body=b"ok"), _OK),
    gives("close-chunked", ok(_CHUNKED, b"Connection: close", body=_BODY), _OK),
]
