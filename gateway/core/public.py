"""The upstream's own address, where authorization tells it to clients, as the gateway's.

In: an authorization document, or a `WWW-Authenticate` challenge, of the upstream's. Out: the same with every URL of the
upstream's own origin moved to the public address. Always: a URL of any other origin, and everything else, stays.

A client that checks `resource` (RFC 9728, 3.3) against the address it uses could not log in through a gateway
otherwise. Only an upstream with `public_url` is treated so.
"""

import re
from typing import Final

from gateway.core.headers import Headers

_DOCUMENT: Final = re.compile(rb"/\.well-known/oauth-[^/?]+(?:[/?].*)?", re.DOTALL)


class PublicUrl:
    """The move from `origin` ("http://127.0.0.1:3001") to `public` ("https://mcp.example/research")."""

    def __init__(self, origin: str, public: str) -> None:
        scheme, _, authority = origin.partition("://")
        default_port = {"http": b":80", "https": b":443"}[scheme]
        port = b"" if re.search(r":[0-9]+$", authority) else b"(?:%b)?" % default_port
        # JSON may write a slash as \/ ; an origin begins where its scheme does, and ends where its port does.
        self._own = re.compile(
            rb"(?<![\w+.-])%b:(?P<slash>\\?/)(?P=slash)%b%b(?![\w.:@-])"
            % (re.escape(scheme.encode()), re.escape(authority.encode()), port),
            re.IGNORECASE,
        )
        self._public = public.rstrip("/").encode()

    @staticmethod
    def is_document(target: bytes) -> bool:
        """Whether a request target (towards the upstream) is that of an authorization document."""
        return _DOCUMENT.fullmatch(target) is not None

    def document(self, data: bytes) -> bytes:
        """A document with the upstream's addresses moved; `data` itself if there is none in it."""
        return self._own.sub(lambda _: self._public, data)

    def challenges(self, headers: Headers) -> Headers:
        """The fields with the addresses in each `WWW-Authenticate` moved."""
        return Headers(
            (name, self.document(value) if name.lower() == b"www-authenticate" else value) for name, value in headers
        )
