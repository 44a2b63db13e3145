"""One JSON-RPC message, read and edited without being written anew.

In: the bytes of a body or of an event. Out: a `Message` whose members are the very bytes that came, or None for
whatever is not one JSON-RPC object (a batch, other JSON, no JSON), which is passed on unread (DESIGN 3.8, 3.9).
Always: an edit changes the bytes it names and no other, so numbers beyond 64 bits, unknown members, escapes and
white space survive (DESIGN 4); `1` and `"1"` are different ids, because an id is its bytes; half of a surrogate pair,
an escape that is no text, is read as U+FFFD. Work is in proportion to bytes: no Python is run for each token, and no
object made for each member, of what a stranger has written.
"""

import re
from functools import lru_cache
from typing import Any, Final, Literal, Protocol

import msgspec
import orjson

INVALID_REQUEST: Final = -32600
METHOD_NOT_FOUND: Final = -32601
INVALID_PARAMS: Final = -32602
INTERNAL_ERROR: Final = -32603

ABSENT: Final = msgspec.Raw(b"")


class Message(msgspec.Struct):
    """A JSON-RPC 2.0 message. Members are raw JSON; one that is absent is empty, and `method` is None."""

    jsonrpc: Literal["2.0"]
    id: msgspec.Raw = ABSENT
    method: str | None = None
    params: msgspec.Raw = ABSENT
    result: msgspec.Raw = ABSENT
    error: msgspec.Raw = ABSENT

    def without_params(self) -> "Message":
        """The message without its params, and without the bytes that it was read from."""
        return Message(self.jsonrpc, id=msgspec.Raw(bytes(self.id)), method=self.method)

    @property
    def is_request(self) -> bool:
        """A method and an id: somebody waits for a response."""
        return self.method is not None and bool(bytes(self.id))

    @property
    def is_response(self) -> bool:
        """No method, an id, and a result or an error."""
        return self.method is None and bool(bytes(self.id)) and bool(bytes(self.result) or bytes(self.error))


# Where no escaped backslash is left: half of a surrogate pair, without its other half beside it.
_LONE: Final = re.compile(
    rb"\\u[dD](?:[89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F][0-9a-fA-F]{2})"
    rb"|(?<!\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD])[c-fC-F][0-9a-fA-F]{2})"
)
_LONE_MAX: Final = 10_000  # in one message: each costs
_NO_UTF_8: Final = b"\xff\xff"

_message = msgspec.json.Decoder(Message)
_members = msgspec.json.Decoder(dict[str, msgspec.Raw])
_key = msgspec.json.Decoder(str)


def parse(data: bytes) -> Message | None:
    """The message in `data`, or None if it is anything but one JSON-RPC 2.0 object.

    Lone surrogates in its members are U+FFFD, but in its id, which is repeated to who sent it.
    """
    try:
        if not data.isascii():
            str(data, "utf-8")  # msgspec does not look at what it does not read
        return _message.decode(data)
    except msgspec.DecodeError:
        return _parse_legible(data)
    except (RecursionError, UnicodeDecodeError):
        return None


def _parse_legible(data: bytes) -> Message | None:
    copy = legible(data)
    if copy == data:
        return None
    try:
        message = _message.decode(copy)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return None
    if b"\\ufffd" in bytes(message.id) and (span := find(copy, "id")):
        message.id = msgspec.Raw(data[slice(*span)])
    return message


def legible(data: bytes) -> bytes:
    """The JSON `data` with each lone surrogate escape, which no decoder takes, as that of U+FFFD; of the same size.

    The first `_LONE_MAX` of them, so that what has more is legible to nobody.
    """
    if b"\\ud" not in data and b"\\uD" not in data:
        return data
    return _LONE.sub(rb"\\ufffd", data.replace(rb"\\", _NO_UTF_8), _LONE_MAX).replace(_NO_UTF_8, rb"\\")


def member(value: msgspec.Raw | bytes | bytearray, name: str) -> msgspec.Raw:
    """The member `name` of a raw JSON object, ABSENT if there is none, or no object; the others cost no memory.

    The name has no quotes, backslashes or control characters.
    """
    try:
        return _only(name).decode(value).value
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return ABSENT


class _Only(Protocol):
    """An object of which one member is read."""

    value: msgspec.Raw


@lru_cache
def _only(name: str) -> msgspec.json.Decoder[_Only]:
    fields = [("value", msgspec.Raw, ABSENT)]
    return msgspec.json.Decoder(msgspec.defstruct("_Only", fields, rename={"value": name}))


def members(value: msgspec.Raw | bytes) -> dict[str, msgspec.Raw]:
    """The members of a small raw JSON object, by name; no members if it is no object."""
    try:
        return _members.decode(value)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return {}


def same_id(one: msgspec.Raw | bytes, other: msgspec.Raw | bytes) -> bool:
    """Whether two raw ids are the same: `1` and `"1"` are not, a string written with other escapes is."""
    if bytes(one) == bytes(other):
        return True
    if not (bytes(one).startswith(b'"') and bytes(other).startswith(b'"')):
        return False
    try:
        return _key.decode(one) == _key.decode(other)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return False


def request(message_id: str, method: str, params: dict[str, Any]) -> bytes:
    """The bytes of a request."""
    return orjson.dumps({"jsonrpc": "2.0", "id": message_id, "method": method, "params": params})


def result(message_id: bytes, value: bytes) -> bytes:
    """The bytes of a response to the request of raw id `message_id` with the raw JSON `value`."""
    return b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (message_id, value)


def error(message_id: bytes, code: int, message: str, data: object = None) -> bytes:
    """The bytes of an error response; `message_id` is raw JSON, empty when the request's is not known."""
    fault: dict[str, object] = {"code": code, "message": message}
    if data is not None:
        fault["data"] = data
    return b'{"jsonrpc":"2.0","id":%b,"error":%b}' % (message_id or b"null", orjson.dumps(fault))


def find(data: bytes, *path: str) -> tuple[int, int] | None:
    """Where the value at `path`, of at least one name, stands in the JSON `data`: (start, end); None if it does not.

    Of a member that is given twice the last one counts, as it does for those who will read the message.
    """
    copy = bytearray(legible(data))
    value: msgspec.Raw | bytearray = copy
    for name in path:
        value = member(value, name)
    view = memoryview(value)
    if not view:
        return None
    start = _start(view, copy)
    return start, start + len(view)


def _start(view: memoryview, buffer: bytearray) -> int:
    """Where in `buffer` a view of it begins. All that is in the buffer is overwritten.

    Half of the places left are marked, then the view is looked at. That is exact whatever the bytes were: of a hostile
    document's tokens there may be millions, and a text that is looked for may stand in it as often.
    """
    low, high = 0, len(buffer)
    buffer[:] = bytes(high)
    while high - low > 1:
        middle = (low + high) // 2
        buffer[low:middle] = b"\1" * (middle - low)
        if view[0]:
            buffer[low:middle] = bytes(middle - low)
            high = middle
        else:
            low = middle
    return low


def insert(data: bytes, path: tuple[str, ...], name: str, value: bytes) -> bytes:
    """`data` with the member `name` put first into the object at `path`, every other byte as it was.

    Raises LookupError if there is no object at `path`.
    """
    span = find(data, *path)
    if span is None or data[span[0] : span[0] + 1] != b"{":
        raise LookupError("/".join(path))
    at = span[0] + 1
    comma = b"" if data[at : span[1]].lstrip().startswith(b"}") else b","
    return b'%b"%b":%b%b%b' % (data[:at], name.encode(), value, comma, data[at:])


def without_meta(data: bytes) -> bytes:
    """A result or params without the member `_meta`, which is the message's and not the object's that it carries."""
    if not bytes(member(data, "_meta")) or (span := find(data, "_meta")) is None:
        return data
    name_end = data.rindex(b'"', 0, span[0])
    name_at = data.rindex(b'"', 0, name_end)  # however it is written, no quote is in this name
    before, behind = data[:name_at].rstrip(), data[span[1] :].lstrip()
    if behind.startswith(b","):
        return before + behind[1:]
    return before.removesuffix(b",") + behind


def replace(data: bytes, path: tuple[str, ...], value: bytes) -> bytes:
    """`data` with the value at `path` replaced, every other byte as it was. Raises LookupError if there is none."""
    span = find(data, *path)
    if span is None:
        raise LookupError("/".join(path))
    return data[: span[0]] + value + data[span[1] :]


class _Error(msgspec.Struct):
    code: int


_error = msgspec.json.Decoder(_Error)


def error_code(response: Message) -> int | None:
    """The code of an error response; None if it is none."""
    try:
        return _error.decode(response.error).code
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return None
