"""Two readers of HTTP/1.1 besides the gateway's: llhttp, by way of httptools, and h11.

In: every byte of one direction of a connection. Out: a `Reading`: the whole messages, and what else is there.
Always: each forgives what its defaults forgive, so a message that only one understands is seen, and one that they read
differently.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import h11
import httptools

Fields: TypeAlias = tuple[tuple[bytes, bytes], ...]
"""Names in lower case, values without the white space around them."""

_MESSAGE_BYTES_MAX: Final = 1 << 22
_NO_ANSWER: Final = "ConnectionClosed when role=SERVER and state=SEND_RESPONSE"  # the end, instead of one


@dataclass(frozen=True)
class Message:
    """A whole message. `start` is method and target, or status and reason."""

    start: tuple[bytes, bytes]
    fields: Fields
    body: bytes = b""
    trailers: Fields = ()

    @property
    def status(self) -> int:
        return int(self.start[0])

    @property
    def target(self) -> bytes:
        return self.start[1]

    def values(self, name: bytes) -> list[bytes]:
        """The values of every field of that name, given in lower case."""
        return [value for key, value in self.fields if key == name]


@dataclass
class Reading:
    """What a reader made of the bytes. `rest`: a message has begun that is not whole. `fault`: what it cannot read."""

    messages: list[Message] = field(default_factory=list)
    rest: bool = False
    fault: str = ""

    @property
    def finals(self) -> list[Message]:
        """The responses that are not informational."""
        return [message for message in self.messages if message.status >= 200]


def _plain(fields: Sequence[tuple[bytes, bytes]]) -> Fields:
    pairs = [(name.lower(), value.strip(b" \t")) for name, value in fields]
    # h11 gives this one value in lower case, whose case means nothing (RFC 9112, 7).
    return tuple((name, value.lower() if name == b"transfer-encoding" else value) for name, value in pairs)


# ---- llhttp ----


class Llhttp:
    """Reads requests, or responses, as they come."""

    def __init__(self, parser: Callable[["Llhttp"], Any], on_head: Callable[[Fields], None] | None = None) -> None:
        self.reading = Reading()
        self._on_head = on_head
        self.parser = parser(self)
        self._empty()

    def _empty(self) -> None:
        self.url, self._reason, self._body = b"", b"", b""
        self._fields: list[tuple[bytes, bytes]] = []
        self._head: Fields | None = None
        self._start: tuple[bytes, bytes] = (b"", b"")

    def feed(self, data: bytes) -> None:
        """Take in what arrived."""
        if self.reading.fault:
            return
        try:
            self.parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self.reading.fault = f"llhttp: {type(error).__name__} {error}"

    def ended(self) -> None:
        """The connection has ended in order: so has a response that nothing else ends."""
        if self.reading.rest and self._head is not None and self.ends_with_connection:
            self.on_message_complete()

    @property
    def ends_with_connection(self) -> bool:
        """Whether nothing in the head says where the body ends."""
        names = dict(self._head or ())
        codings = names.get(b"transfer-encoding", b"").lower().rpartition(b",")[2].strip()
        return b"content-length" not in names and codings != b"chunked"

    def head_is_whole(self) -> bool:
        """Whether the head of the message under way has come."""
        return self._head is not None

    def on_message_begin(self) -> None:
        self._empty()
        self.reading.rest = True

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_status(self, reason: bytes) -> None:
        self._reason += reason

    def on_header(self, name: bytes, value: bytes) -> None:
        self._fields.append((name, value))

    def on_headers_complete(self) -> None:
        self._head, self._fields = _plain(self._fields), []
        if isinstance(self.parser, httptools.HttpRequestParser):
            self._start = (self.parser.get_method(), self.url)
        else:
            self._start = (b"%d" % self.parser.get_status_code(), self._reason)
        if self._on_head is not None:
            self._on_head(self._head)

    def on_body(self, data: bytes) -> None:
        self._body += data

    def on_message_complete(self) -> None:
        trailers = _plain(self._fields)
        self.reading.messages.append(Message(self._start, self._head or (), self._body, trailers))
        self.reading.rest = False


def requests_by_llhttp(data: bytes) -> Reading:
    """The requests in `data`."""
    reader = Llhttp(httptools.HttpRequestParser)
    reader.feed(data)
    return reader.reading


def responses_by_llhttp(data: bytes, methods: Sequence[bytes], ended: bool) -> Reading:
    """The responses in `data` to requests of these methods; `ended`: the connection has, by FIN.

    httptools cannot be told that a response is to HEAD: it is given such a head alone.
    """
    before = Reading()
    rest = data
    while b"HEAD" in methods[len(before.finals) :] and rest and not before.fault:
        one = _one_response(rest, methods[len(before.finals)] == b"HEAD")
        if one is None:
            break
        reading, rest = one
        before.messages += reading.messages
        before.fault = reading.fault
    if before.fault:
        return before
    reader = Llhttp(httptools.HttpResponseParser)
    reader.feed(rest)
    if ended:
        reader.ended()
    reading = reader.reading
    reading.messages = before.messages + reading.messages
    if len(reading.finals) > len(methods):
        reading.fault = reading.fault or "llhttp: a response that nobody asked for"
    return reading


def _one_response(data: bytes, to_head: bool) -> tuple[Reading, bytes] | None:
    """The first response, and what is behind it; None if it is not whole."""
    head_end = data.find(b"\r\n\r\n") + 4
    reader = Llhttp(httptools.HttpResponseParser)
    reader.feed(data[:head_end])
    if head_end < 4 or not reader.head_is_whole():
        return (reader.reading, b"") if reader.reading.fault else None
    at = head_end
    if to_head and not reader.reading.messages:
        reader.on_message_complete()
    while not reader.reading.messages and not reader.reading.fault and at < len(data):
        reader.feed(data[at : at + 1])
        at += 1
    return (reader.reading, data[at:]) if reader.reading.messages or reader.reading.fault else None


# ---- h11 ----


class _H11:
    """What h11 reads, event by event."""

    def __init__(self, role: Any) -> None:
        self.reading = Reading()
        self.connection = h11.Connection(role, max_incomplete_event_size=_MESSAGE_BYTES_MAX)
        self._start: tuple[bytes, bytes] = (b"", b"")
        self._fields: Fields = ()
        self._body: list[bytes] = []

    def next(self) -> Any:
        """The next event, or None if there is none, or no sense in what is there."""
        try:
            event = self.connection.next_event()
        except h11.RemoteProtocolError as error:
            self.reading.fault = f"h11: {error}"
            return None
        if event is h11.NEED_DATA or event is h11.PAUSED or isinstance(event, h11.ConnectionClosed):
            self.reading.rest |= bool(self.connection.trailing_data[0])
            return None
        return event

    def take(self, event: Any) -> None:
        """Note what an event says."""
        if isinstance(event, h11.Request):
            self._begin((bytes(event.method), bytes(event.target)), event)
        elif isinstance(event, h11.InformationalResponse):
            start = (b"%d" % event.status_code, bytes(event.reason))
            self.reading.messages.append(Message(start, _plain(event.headers.raw_items())))
        elif isinstance(event, h11.Response):
            self._begin((b"%d" % event.status_code, bytes(event.reason)), event)
        elif isinstance(event, h11.Data):
            self._body.append(bytes(event.data))
        else:
            trailers = _plain(event.headers.raw_items())
            self.reading.messages.append(Message(self._start, self._fields, b"".join(self._body), trailers))
            self.reading.rest = False

    def _begin(self, start: tuple[bytes, bytes], event: Any) -> None:
        self._start, self._fields, self._body = start, _plain(event.headers.raw_items()), []
        self.reading.rest = True

    def closes(self, behind: str) -> bool:
        """Begin the next exchange; True if there can be none, which is a fault where bytes are left."""
        if self.connection.our_state is h11.DONE and self.connection.their_state is h11.DONE:
            self.connection.start_next_cycle()
            return False
        if self.connection.trailing_data[0]:
            self.reading.fault = f"h11: bytes behind {behind} that closes"
        return True


def requests_by_h11(data: bytes) -> Reading:
    """The requests in `data`, each answered at once."""
    reader = _H11(h11.SERVER)
    reader.connection.receive_data(data)
    while (event := reader.next()) is not None:
        reader.take(event)
        if isinstance(event, h11.EndOfMessage):
            reader.connection.send(h11.Response(status_code=200, headers=[("Content-Length", "0")]))
            reader.connection.send(h11.EndOfMessage())
            if reader.closes("a request"):
                break
    return reader.reading


def responses_by_h11(data: bytes, methods: Sequence[bytes], ended: bool) -> Reading:
    """The responses in `data` to requests of these methods; `ended`: the connection has, by FIN."""
    if not data:
        return Reading()
    reader = _H11(h11.CLIENT)
    reader.connection.receive_data(data)
    left = list(methods)
    if ended:
        reader.connection.receive_data(b"")
    while left:
        reader.connection.send(h11.Request(method=left.pop(0), target="/", headers=[("Host", "x")]))
        reader.connection.send(h11.EndOfMessage())
        while (event := reader.next()) is not None:
            reader.take(event)
            if isinstance(event, h11.EndOfMessage):
                break
        if event is None or reader.closes("a response"):
            break
    if ended and _NO_ANSWER in reader.reading.fault:
        reader.reading.fault = ""
    elif ended and reader.reading.fault.startswith("h11: peer "):
        reader.reading.fault, reader.reading.rest = "", True  # it says so where a message stops short
    elif not left and not reader.reading.rest and not reader.reading.fault and reader.connection.trailing_data[0]:
        reader.reading.fault = "h11: a response that nobody asked for"
    return reader.reading


# ---- both ----


def differences(one: Reading, other: Reading, h11_may_refuse: bool = False) -> list[str]:
    """How two readings of the same bytes differ."""
    found = [reading.fault for reading in (one, other) if reading.fault]
    if h11_may_refuse:
        return [fault for fault in found if not re.match("h11: .*(Transfer-Encoding)", fault)]
    if not found and one.rest != other.rest:
        found.append("one reader waits for more, the other does not")
    if not found and one.messages != other.messages:
        pairs = zip(one.messages, other.messages, strict=False)
        found += [f"llhttp read {a}, h11 read {b}" for a, b in pairs if a != b]
        found += [f"llhttp read {len(one.messages)} messages, h11 {len(other.messages)}"]
    return found
