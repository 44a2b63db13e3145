"""Control characters and line ends inside every part of a head: each is refused (RFC 9110, 5.5; RFC 9112, 2.2)."""

from typing import Final

from tests.attack.rows import Request, refused

_BYTES: Final = {
    "nul": b"\0", "soh": b"\1", "vt": b"\x0b", "ff": b"\x0c", "cr": b"\r", "lf": b"\n", "esc": b"\x1b", "del": b"\x7f",
}  # fmt: skip
_PLACES: Final = {
    "method": b"G%bET /mcp HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "behind-method": b"GET%b /mcp HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "target": b"GET /a%bb HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "query": b"GET /a?%bb HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "version": b"GET /mcp HTTP/1.1%b\r\nHost: localhost\r\n\r\n",
    "host": b"GET /mcp HTTP/1.1\r\nHost: local%bhost\r\n\r\n",
    "name": b"GET /mcp HTTP/1.1\r\nHost: localhost\r\nX%bY: a\r\n\r\n",
    "before-name": b"GET /mcp HTTP/1.1\r\nHost: localhost\r\n%bX: a\r\n\r\n",
    "behind-name": b"GET /mcp HTTP/1.1\r\nHost: localhost\r\nX%b: a\r\n\r\n",
    "value": b"GET /mcp HTTP/1.1\r\nHost: localhost\r\nX: a%bb\r\n\r\n",
    "before-value": b"GET /mcp HTTP/1.1\r\nHost: localhost\r\nX:%ba\r\n\r\n",
    "behind-value": b"GET /mcp HTTP/1.1\r\nHost: localhost\r\nX: a%b\r\n\r\n",
    "value-before-a-field": b"GET /mcp HTTP/1.1\r\nHost: localhost\r\nX: a%bTransfer-Encoding: chunked\r\n\r\n",
}
_STATUSES: Final = {"version": (400, 505), "method": (400, 501), "behind-method": (400, 501), "host": (400, 403)}

ROWS: Final[list[Request]] = [
    refused(f"{name}-in-{place}", data % byte, *_STATUSES.get(place, (400,)))
    for place, data in _PLACES.items()
    for name, byte in _BYTES.items()
    # A line that ends with LF is read as one by some: the row above has it.
    if not (place == "behind-value" and name == "lf")
]
