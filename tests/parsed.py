"""One end of a connection on llhttp, as lean as can be: between a subclass and the socket stands the parser alone.

In: bytes. Out: llhttp's callbacks, which a subclass has (`on_header`, `on_body`, `on_message_complete`). Always:
`writable` is set while the other side takes more.
"""

import asyncio
from typing import Any, ClassVar

import httptools


class Parsed(asyncio.Protocol):
    """One end, which reads responses."""

    transport: asyncio.Transport
    reads: ClassVar[Any] = httptools.HttpResponseParser

    def __init__(self) -> None:
        self.parser = self.reads(self)
        self.writable = asyncio.Event()
        self.writable.set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]  # uvloop's are no asyncio.Transport

    def pause_writing(self) -> None:
        self.writable.clear()

    def resume_writing(self) -> None:
        self.writable.set()

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)


class Serving(Parsed):
    """One end, which reads requests."""

    reads = httptools.HttpRequestParser
