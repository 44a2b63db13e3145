"""What two readers of HTTP/1.1 make of the same bytes: llhttp, by way of httptools, and ours, which forgives nothing.

Both give messages alike: names of fields in lower case, no white space about values, and no framing.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import httptools

from tests.relay.http1 import Fields, Malformed, Message, Reader


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
    return tuple((name.lower(), value.strip(b" \t")) for name, value in fields)


def _alike(message: Message, start: bytes) -> Message:
    return Message(start, _plain(message.fields), "", message.body, _plain(message.trailers))


# ---- llhttp ----


class _Llhttp:
    """Reads requests, or responses."""

    def __init__(self, parser: Callable[["_Llhttp"], Any]) -> None:
        self.reading = Reading()
        self._parser = parser(self)
        self._empty()

    def _empty(self) -> None:
        self._url, self._reason, self._body = b"", b"", b""
        self._fields: list[tuple[bytes, bytes]] = []
        self._head: Fields | None = None
        self._start = b""

    def feed(self, data: bytes) -> None:
        """Take in what arrived."""
        if self.reading.fault:
            return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self.reading.fault = f"llhttp: {type(error).__name__} {error}"

    def ended(self) -> None:
        """The connection has ended in order: so has a response that nothing in its head ends."""
        names = dict(self._head or ())
        coding = names.get(b"transfer-encoding", b"").lower().rpartition(b",")[2].strip()
        if self.reading.rest and self.head_is_whole and b"content-length" not in names and coding != b"chunked":
            self.on_message_complete()

    @property
    def head_is_whole(self) -> bool:
        """Whether the head of the message under way has come."""
        return self._head is not None

    def on_message_begin(self) -> None:
        self._empty()
        self.reading.rest = True

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_status(self, reason: bytes) -> None:
        self._reason += reason

    def on_header(self, name: bytes, value: bytes) -> None:
        self._fields.append((name, value))

    def on_headers_complete(self) -> None:
        self._head, self._fields = _plain(self._fields), []
        if isinstance(self._parser, httptools.HttpRequestParser):
            self._start = self._parser.get_method() + b" " + self._url
        else:
            self._start = b"HTTP %d %b" % (self._parser.get_status_code(), self._reason)

    def on_body(self, data: bytes) -> None:
        self._body += data

    def on_message_complete(self) -> None:
        trailers = _plain(self._fields)
        self.reading.messages.append(Message(self._start, self._head or (), "", self._body, trailers))
        self.reading.rest = False


def requests_by_llhttp(data: bytes) -> Reading:
    reader = _Llhttp(httptools.HttpRequestParser)
    reader.feed(data)
    return reader.reading


def responses_by_llhttp(data: bytes, methods: Sequence[bytes], ended: bool) -> Reading:
    """The responses in `data` to these methods. httptools cannot be told of HEAD: it is given such a head alone."""
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
    reader = _Llhttp(httptools.HttpResponseParser)
    reader.feed(rest)
    if ended:
        reader.ended()
    reading = reader.reading
    reading.messages = before.messages + reading.messages
    if len(reading.finals) > len(methods):
        reading.fault = reading.fault or "llhttp: a response that nobody asked for"
    return reading


def _one_response(data: bytes, to_head: bool) -> tuple[Reading, bytes] | None:
    head_end = data.find(b"\r\n\r\n") + 4
    reader = _Llhttp(httptools.HttpResponseParser)
    reader.feed(data[:head_end])
    if head_end < 4 or not reader.head_is_whole:
        return (reader.reading, b"") if reader.reading.fault else None
    at = head_end
    if to_head and not reader.reading.messages:
        reader.on_message_complete()
    while not reader.reading.messages and not reader.reading.fault and at < len(data):
        reader.feed(data[at : at + 1])
        at += 1
    return (reader.reading, data[at:]) if reader.reading.messages or reader.reading.fault else None


# ---- our own ----


def plain_request(message: Message) -> Message:
    """A request that ours has read, as both give it."""
    return _alike(message, message.start.rpartition(b" ")[0])


def requests_by_ours(data: bytes) -> Reading:
    reader = Reader()
    reader.feed(data)
    return _reading(reader, reader.requests, lambda start: start.rpartition(b" ")[0])


def responses_by_ours(data: bytes, methods: Sequence[bytes], ended: bool) -> Reading:
    reader = Reader()
    reader.feed(data)
    return _reading(reader, lambda: reader.responses(methods, "fin" if ended else "open"), lambda s: b"HTTP" + s[8:])


def _reading(reader: Reader, read: Callable[[], Sequence[Message]], start: Callable[[bytes], bytes]) -> Reading:
    found, messages = Reading(), reader.done
    try:
        messages = list(read())
        ended = bool(messages) and messages[-1].whole and messages[-1].framing == "close"
        found.rest = reader.has_rest and not ended
    except Malformed as error:
        found.fault = f"ours: {error}"
    found.messages = [_alike(message, start(message.start)) for message in messages if message.whole]
    return found


# ---- both ----


def differences(llhttp: Reading, ours: Reading) -> list[str]:
    """How two readings of the same bytes differ."""
    found = [reading.fault for reading in (llhttp, ours) if reading.fault]
    if not found and llhttp.rest != ours.rest:
        found.append("one reader waits for more, the other does not")
    if not found and llhttp.messages != ours.messages:
        pairs = zip(llhttp.messages, ours.messages, strict=False)
        found += [f"llhttp read {a}, ours read {b}" for a, b in pairs if a != b]
        found += [f"llhttp read {len(llhttp.messages)} messages, ours {len(ours.messages)}"]
    return found
