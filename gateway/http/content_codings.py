"""Content codings: which the gateway can read (`_READABLE` alone says it), and how."""

import zlib
from collections.abc import Callable
from typing import Final

from gateway.http.header_fields import Headers

_INFLATED_AT_ONCE: Final = 16 * 1024  # few: zlib copies all bytes that follow a gzip member
_INFLATED_RATIO_MAX: Final = 32  # bytes unpacked from one byte of an endless stream; JSON gives 5 to 20
_OFFERED_BYTES_MAX: Final = 1000  # of `Accept-Encoding`: each member takes time
_READABLE: Final = frozenset({b"gzip", b"x-gzip", b"deflate", b"identity"})  # in passing (DESIGN 3.3)
_BY_FIRST_BYTES: Final = zlib.MAX_WBITS | 32  # they tell gzip from zlib

Decode = Callable[[bytes], bytes]


class Unreadable(Exception):
    """A body, behind `begun`, cannot be decoded: its encoding is unknown or malformed, or it unpacks to too much."""

    def __init__(self, why: str = "it broke off", begun: bytes = b"") -> None:
        super().__init__(why)
        self.begun = begun


def decoder(headers: Headers, bytes_max: int) -> Decode:
    """A function that decodes a body (`Content-Encoding`) piece by piece; an empty piece marks the end.

    It decodes one coding: `gzip, gzip` is Unreadable, in one header line or in two. A piece gives `bytes_max` at most.
    All pieces together give at most `bytes_max` and `_INFLATED_RATIO_MAX` times their own size. `decoder` and the
    function raise Unreadable; the function also does so at the end of a body that stops short.
    """
    codings = headers.tokens(b"content-encoding") or [b"identity"]
    if codings == [b"identity"]:
        return bytes  # the same object
    if len(codings) > 1 or codings[0] not in _READABLE:
        raise Unreadable(b", ".join(codings).decode("latin-1"))
    inflate = zlib.decompressobj(_BY_FIRST_BYTES)
    begun, room = False, bytes_max

    def decode(piece: bytes) -> bytes:
        nonlocal inflate, begun, room
        if not piece and begun and not inflate.eof:
            raise Unreadable("it stops short")
        begun = begun or bool(piece)
        plain = bytearray()
        room += len(piece) * _INFLATED_RATIO_MAX
        most = min(room, bytes_max)
        for start in range(0, len(piece), _INFLATED_AT_ONCE):
            packed = piece[start : start + _INFLATED_AT_ONCE]
            while packed:
                if inflate.eof:  # gzip may have several members (RFC 1952, 2.2)
                    inflate = zlib.decompressobj(_BY_FIRST_BYTES)
                try:
                    plain += inflate.decompress(packed, most + 1 - len(plain))
                except zlib.error as error:
                    raise Unreadable(str(error), bytes(plain)) from None
                if len(plain) > most:
                    raise Unreadable(f"more than {most} bytes unpacked from {len(piece)}", bytes(plain))
                packed = inflate.unused_data
        room -= len(plain)
        return bytes(plain)

    return decode


def with_readable(headers: Headers) -> Headers:
    """The fields with `Accept-Encoding` narrowed to what the gateway can read; itself if all is readable."""
    if b"accept-encoding" not in headers.by_name:
        return headers
    values = headers.all(b"accept-encoding")
    if sum(map(len, values)) > _OFFERED_BYTES_MAX:
        return headers.with_value(b"accept-encoding", b"identity")
    offered = [part for value in values for part in value.split(b",") if part.strip(b" \t")]
    kept = [part for part in offered if part.partition(b";")[0].strip(b" \t").lower() in _READABLE]
    if len(kept) == len(offered):
        return headers
    return headers.with_value(b"accept-encoding", b", ".join(part.strip(b" \t") for part in kept) or b"identity")
