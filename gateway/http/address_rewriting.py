"""Moves the addresses that the upstream tells clients of itself to the gateway's (DESIGN 3.10).

Without this, a client that checks `resource` (RFC 9728, 3.3) or `issuer` (RFC 8414, 3.3) against the address that it
uses could not log in through a gateway, and a client that follows a redirect would leave the gateway.
"""

import re
from collections.abc import Callable
from typing import Final
from urllib.parse import quote_from_bytes, unquote_to_bytes, urljoin, urlsplit

import msgspec

from gateway.http.header_fields import Headers
from gateway.mcp.jsonrpc import decoded

DOCUMENT_BYTES_MAX: Final = 64 * 1024  # of an authorization document
LOOPBACK: Final = ("localhost", "127.0.0.1", "[::1]")  # names of one machine: a server at one answers at the others
_DEFAULT_PORTS: Final = {b"http": b":80", b"https": b":443"}
_WELL_KNOWN: Final = re.compile(
    rb"(?:/[^?]*)?/\.well-known/(?:oauth-[^/?]+|openid-configuration)(?:[/?].*)?", re.DOTALL
)
_ESCAPE: Final = re.compile(rb"\\u00(?!22|5[Cc]|7[Ff])([2-7][0-9A-Fa-f])")
_NO_UTF_8: Final = b"\xff\xff"  # stands for an escaped backslash meanwhile
_ISSUER: Final = re.compile(rb"(?<=[?&#]iss=)[^&#]*")  # RFC 9207
# As host_origin_check.py has it.
_HOST: Final = re.compile(rb"(?:[A-Za-z0-9._-]{1,255}|\[[0-9A-Fa-f:.]{1,45}\])(?::[0-9]{1,5})?")
_PORT: Final = re.compile(rb":[0-9]*$")
# What may follow within an authority (RFC 3986, 3.2) or a segment of a path. In text a quote or a bracket may also end
# an address, unless more follows. A comma or a semicolon ends it, unless an `@` makes all of it a user's name.
_GOES_ON: Final = rb"['()]*+(?:[\w.~:@!$%&*+=\x80-\xff-]|[,;][^/?#\\\"<>\s]*@)"
_MORE: Final = re.compile(_GOES_ON)
# Any origin in text. A slash may be written as \/ ; an origin begins where its scheme does, ends where its port does.
_ORIGIN: Final = re.compile(
    rb"(?<![\w+.-])(https?):(?:\\?/){2}([\w.-]++|\[[0-9a-f:.]++\])(:[0-9]++)?(?!%b)" % _GOES_ON, re.IGNORECASE
)
_LOCATIONS: Final = (b"location", b"content-location")
_MOVED: Final = (301, 307, 308)  # for good, or the same request again: 302 and 303 may lead to a login
_SHOWN_CHARS_MAX: Final = 200
_FORWARDED_PROTO: Final = re.compile(rb"(?:^|;)[ \t]*proto=\"?(https?)\"?[ \t]*(?:;|$)", re.IGNORECASE)


class _Resource(msgspec.Struct):
    """The members that make a JSON object the metadata of a protected resource (RFC 9728), wherever it stands."""

    resource: str
    authorization_servers: list[str]


_resource: Final = msgspec.json.Decoder(_Resource)


def is_well_known(target: bytes) -> bool:
    return _WELL_KNOWN.fullmatch(target) is not None


def is_resource_metadata(data: bytes) -> bool:
    return decoded(_resource, data) is not None


class Move:
    """The move of the upstream's addresses to `base` (b"https://mcp.example/research"), where one client is."""

    def __init__(self, own: frozenset[bytes], base: bytes) -> None:
        self._own = own  # the upstream's origins, as `_origin` writes them
        self.base = base
        self._path = b"/".join([b"", *base.split(b"/")[3:]])

    def text(self, data: bytes) -> bytes:
        """Text with the upstream's addresses moved; `data` itself if there is none in it."""
        moved = _ORIGIN.sub(lambda found: self._moved(found, data), data)
        return data if moved == data else moved

    def _is_own(self, found: re.Match[bytes]) -> bool:
        return _origin(found[1], found[2] + (found[3] or b"")) in self._own

    def _moved(self, found: re.Match[bytes], data: bytes) -> bytes:
        return self.base if self._is_own(found) and not self._is_right(found, data) else found[0]

    def _is_right(self, found: re.Match[bytes], data: bytes) -> bool:
        """Whether the address is the gateway's already: an upstream that is told the client's `Host` may know it."""
        at = found.start()
        return data.startswith(self.base, at) and _MORE.match(data, at + len(self.base)) is None

    def document(self, data: bytes) -> bytes:
        """JSON with the upstream's addresses moved, however they are escaped; `data` itself if there is none."""
        plain = data
        if _NO_UTF_8[:1] not in data and (b"\\u" in data or b"\\/" in data):
            single = data.replace(rb"\\", _NO_UTF_8).replace(rb"\/", b"/")
            plain = _ESCAPE.sub(lambda found: b"%c" % int(found[1], 16), single).replace(_NO_UTF_8, rb"\\")
        moved = self.text(plain)
        return data if moved is plain else moved

    def address(self, value: bytes) -> bytes:
        """An address of the upstream's, in any form that a URI reference has (RFC 3986, 4.2), as clients find it."""
        if value.startswith(b"/") and not value.startswith(b"//"):
            return self._path + value
        for written in (b"http:" + value, b"https:" + value) if value.startswith(b"//") else (value,):
            found = _ORIGIN.match(written)
            goes_on = found is not None and written.startswith((b",", b";"), found.end())  # it is no text that ends
            if found is not None and not goes_on and self._is_own(found):
                return value if self._is_right(found, written) else self.base + written[found.end() :]
        return value

    def _issuer(self, found: re.Match[bytes]) -> bytes:
        issuer = unquote_to_bytes(found[0])
        moved = issuer if issuer.startswith(b"/") else self.address(issuer)  # a path is no issuer (RFC 9207)
        return found[0] if moved is issuer else quote_from_bytes(moved, safe="").encode()

    def headers(self, status: int, headers: Headers) -> Headers:
        """A response's fields with the addresses in its redirect and its challenges moved."""
        moves: dict[bytes, Callable[[bytes], bytes]] = dict.fromkeys(
            _LOCATIONS, lambda value: _ISSUER.sub(self._issuer, self.address(value))
        )
        if status in (401, 403):
            moves[b"www-authenticate"] = self.text
        return Headers((name, moves.get(name.lower(), bytes)(value)) for name, value in headers)


class Addresses:
    """The addresses of one upstream: its own origin, and where clients find it.

    `scheme` and `authority` are those of its `url`. `sent_host` is the `Host` that the upstream gets, None for the
    client's own. `public` is the configured `public_url`: "off" if addresses stay, None where each client's `Host`
    decides. `prefix` is the configured `match.prefix`.
    """

    def __init__(self, scheme: str, authority: str, sent_host: str | None, public: str | None, prefix: str) -> None:
        self._scheme = scheme
        self._sent_host = sent_host
        self._stay = public == "off"
        self._public = "" if public is None or self._stay else public.rstrip("/")
        self._prefix = prefix
        host = _PORT.sub(b"", authority.encode()).decode()
        port = authority[len(host) :]
        same = LOOPBACK if host.lower() in LOOPBACK else (host,)
        self._authorities = frozenset({*(name + port for name in same), *([sent_host] if sent_host else [])})

    def move(self, client: Headers, sent: Headers, is_tls: bool) -> Move | None:
        """The move for one client; None if addresses stay, and for a request without a usable `Host` (HTTP/1.0)."""
        base = "" if self._stay else self.base(client, is_tls)
        if not base:
            return None
        host = client.get(b"host") or b""
        told_host = not self._sent_host and _HOST.fullmatch(host) is not None
        authorities = self._authorities | {host.decode()} if told_host else self._authorities
        told = forwarded_proto(sent)
        schemes = {self._scheme, told} if told else {self._scheme}
        return Move(frozenset(_origin(s.encode(), a.encode()) for s in schemes for a in authorities), base.encode())

    def base(self, client: Headers, is_tls: bool) -> str:
        """Where a client finds the upstream's root; empty if that is not known.

        An https upstream makes the address https, except on this machine: the gateway must not lead a client to send
        its token in plain text.
        """
        host = client.get(b"host") or b""
        if self._public or not _HOST.fullmatch(host):
            return self._public
        name = _PORT.sub(b"", host).decode().lower()
        is_https = is_tls or forwarded_proto(client) == "https" or (self._scheme == "https" and name not in LOOPBACK)
        return f"{'https' if is_https else 'http'}://{host.decode()}{self._prefix}"


def forwarded_proto(headers: Headers) -> str:
    """The scheme that `X-Forwarded-Proto`, or else `Forwarded`, says the client used; empty if neither does."""
    proto = headers.tokens(b"x-forwarded-proto")
    if proto:
        return proto[0].decode() if proto[0] in (b"http", b"https") else ""
    found = _FORWARDED_PROTO.search((headers.get(b"forwarded") or b"").partition(b",")[0])
    return found[1].lower().decode() if found else ""


def _origin(scheme: bytes, authority: bytes) -> bytes:
    scheme = scheme.lower()
    return scheme + b"://" + authority.lower().removesuffix(_DEFAULT_PORTS[scheme])


def misplaced(status: int, location: str, asked: str, path: str) -> str:
    """What an answer to a message says of the address that was asked, in words for an operator; empty if nothing.

    A redirect says where the endpoint is; a 404 in no session says that it is not there. `path` is that of `url`. No
    query is shown: it may have a token.
    """
    try:  # a `Host` that goes up as it came may be any text
        at, to = urlsplit(asked), urlsplit(urljoin(asked, location))
    except ValueError:
        return ""
    if status == 404:
        wrong = "the path of url is wrong" if at.path == path else f"the client's path is wrong, url has {path}"
        return f"nothing is there: {wrong}"
    if not 300 < status < 400 or not location or to.scheme not in ("http", "https"):
        return ""
    host = to.netloc.rpartition("@")[2]
    is_path = host == at.netloc and to.path != at.path
    shown = (to.path if is_path else f"{to.scheme}://{host}{to.path}")[:_SHOWN_CHARS_MAX]
    if (to.scheme, host, to.path) == (at.scheme, at.netloc, at.path):
        return f"redirects to {shown}, which was asked, or differs in its query alone"
    if is_path and to.path == path:
        return f"redirects to {shown}, as url has it: the client's path is wrong"
    return f"redirects to {shown}: {'put that into url' if status in _MOVED else 'a login, or what belongs into url'}"
