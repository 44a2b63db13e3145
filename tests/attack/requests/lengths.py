"""`Content-Length`: one field, one number, and as many bytes (RFC 9110, 8.6; RFC 9112, 6.3)."""

from typing import Final

from tests.attack.rows import WAYS, Request, Seen, bad_behind, either, get, passes, refused, streamed

BAD: Final = {
    "plus": b"+3", "minus": b"-3", "minus-zero": b"-0", "hexadecimal": b"0x3", "octal-prefix": b"0o3",
    "fraction": b"3.0", "exponent": b"3e0", "underscore": b"1_0", "comma": b"3,", "list-of-equals": b"3, 3",
    "list-of-others": b"3, 4", "list-without-space": b"3,3", "two-numbers": b"3 3", "semicolon": b"3;",
    "quoted": b'"3"', "letters": b"three", "empty": b"", "arabic-digit": "\u0663".encode(),
    "fullwidth-digit": "\uff13".encode(), "superscript": b"\xb3", "no-break-space": b"3\xa0",
    "2-to-the-64-and-3": b"18446744073709551619", "2-to-the-64-less-1": b"18446744073709551615", "20-nines": b"9" * 20,
    "400-digits": b"3" * 400, "chunked": b"chunked",
}  # fmt: skip
_LENGTH: Final = b"Content-Length: 3"
_NONE: Final = b"Content-Length: 0"
LINES: Final = {
    "twice-the-same": (_LENGTH, _LENGTH), "twice-others": (_LENGTH, b"Content-Length: 4"),
    "twice-zero-first": (_NONE, _LENGTH), "twice-in-other-case": (_LENGTH, b"CONTENT-LENGTH: 3"),
    "twice-one-empty": (_LENGTH, b"Content-Length:"), "twice-one-bad": (_LENGTH, b"Content-Length: x"),
    "thrice": (_LENGTH,) * 3, "once-with-a-space-before-colon": (_LENGTH, b"Content-Length : 4"),
    "twice-far-apart": (_LENGTH, *(b"X-%d: a" % n for n in range(50)), b"Content-Length: 4"),
    "space-before-colon": (b"Content-Length : 3",), "tab-before-colon": (b"Content-Length\t: 3",),
}  # fmt: skip

ROWS: Final[list[Request]] = [
    *(refused(name, get(b"Content-Length: " + v, method=b"POST", body=b"abc"), 400, 413) for name, v in BAD.items()),
    *(refused(name, get(*lines, method=b"POST", body=b"abc")) for name, lines in LINES.items()),
    *(
        passes(f"{way}-{name}", send(b"Content-Length:" + value, body=b"abc"), Seen(method, body=b"abc"))
        for way, (send, method) in WAYS.items()
        for name, value in {"no-space": b"3", "spaces-around": b" \t3\t ", "leading-zeros": b" 0003"}.items()
    ),
    *(
        passes(f"body-of-{m.decode()}", get(_LENGTH, method=m, body=b"abc"), Seen(m, body=b"abc"))
        for m in (b"GET", b"DELETE", b"OPTIONS", b"HEAD", b"PROPFIND")
    ),
    either("body-of-TRACE", get(_LENGTH, method=b"TRACE", body=b"abc"), Seen(b"TRACE", body=b"abc")),
    passes("zero", get(_NONE, method=b"POST"), Seen(b"POST")),
    passes("zeros", get(b"Content-Length: 000", method=b"POST"), Seen(b"POST")),
    passes("no-length", get(method=b"POST"), Seen(b"POST")),
    *(
        bad_behind(f"{way}-more-bytes-than-it-says", send(_LENGTH, body=b"abcdef\r\n\r\n"), Seen(m, body=b"abc"))
        for way, (send, m) in WAYS.items()
    ),
    passes("a-request-behind-zero", streamed(_NONE, body=get(target=b"/b")), Seen(b"PUT"), Seen(target=b"/b")),
]
