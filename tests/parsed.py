"""One end of a connection on llhttp, whose callbacks a subclass has; `writable` is set while the other side reads."""

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
