"""What the strict reader (tests/relay/http1.py) makes of bytes: names of fields in lower case, and no framing."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tests.relay.http1 import Fields, Malformed, Message, Reader


@dataclass
class Reading:
    """What was made of the bytes. `rest`: a message has begun that is not whole. `fault`: what cannot be read."""

    messages: list[Message] = field(default_factory=list)
    rest: bool = False
    fault: str = ""

    @property
    def finals(self) -> list[Message]:
        return [message for message in self.messages if message.status >= 200]


def plain(message: Message) -> Message:
    """A message without its version."""
    start = b"HTTP" + message.start[8:] if message.start[:5] == b"HTTP/" else message.start.rpartition(b" ")[0]
    return Message(start, _lower(message.fields), "", message.body, _lower(message.trailers))


def _lower(fields: Fields) -> Fields:
    return tuple((name.lower(), value) for name, value in fields)


def read_requests(data: bytes) -> Reading:
    reader = Reader()
    return _reading(reader, data, reader.requests)


def read_responses(data: bytes, methods: Sequence[bytes], ended: bool = False) -> Reading:
    """The responses in `data` to these methods; `ended`: the connection has, in order."""
    reader = Reader()
    return _reading(reader, data, lambda: reader.responses(methods, "fin" if ended else "open"))


def _reading(reader: Reader, data: bytes, read: Callable[[], Sequence[Message]]) -> Reading:
    reader.feed(data)
    found, messages = Reading(), reader.done
    try:
        messages = list(read())
        ended = bool(messages) and messages[-1].whole and messages[-1].framing == "close"
        found.rest = reader.has_rest and not ended
    except Malformed as error:
        found.fault = f"{error}"
    found.messages = [plain(message) for message in messages if message.whole]
    return found
