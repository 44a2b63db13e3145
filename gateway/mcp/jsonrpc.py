"""One JSON-RPC message: read, and edited in place.

A `Message` has as members the very bytes that came. What is no single message (a batch, other JSON, no JSON) is None,
and relayed unread (DESIGN 3.8, 3.9). An edit changes the bytes that it names and no others, so numbers beyond 64 bits,
unknown members, escapes and white space survive (DESIGN 4). `1` and `"1"` are different ids. Behind the strict reader
stands a lenient one, for what is nearly JSON (`rewritten`): what it has read is written anew, as JSON. Work is in
proportion to bytes.
"""

import json
import re
from functools import lru_cache
from math import isfinite
from typing import Annotated, Any, ClassVar, Final, Literal, TypeAlias, TypeVar

import msgspec
import orjson

CANNOT_ANSWER: Final = -32017  # of those that MCP leaves to implementations: no SDK has it for its own use
INVALID_REQUEST: Final = -32600
METHOD_NOT_FOUND: Final = -32601
INVALID_PARAMS: Final = -32602
NOT_FOUND: Final = -32002  # of a resource; the Rust SDK has it of a task too (DESIGN 2.15)
INTERNAL_ERROR: Final = -32603

ABSENT: Final = msgspec.Raw(b"")


class Message(msgspec.Struct):
    """A JSON-RPC 2.0 message. Members are raw JSON, empty if absent. `method` is None if absent."""

    is_strict: ClassVar[bool] = True  # else the lenient reader read it: the bytes that came are not edited
    jsonrpc: Literal["2.0"]
    id: msgspec.Raw = ABSENT
    method: str | None = None
    params: msgspec.Raw = ABSENT
    result: msgspec.Raw = ABSENT
    error: msgspec.Raw = ABSENT

    @property
    def is_request(self) -> bool:
        return self.method is not None and bool(self.id)

    @property
    def is_response(self) -> bool:
        return self.method is None and bool(self.id and (self.result or self.error))

    def answers(self, message_id: int) -> bool:
        """Whether it is the response to the one request of its exchange, which has that id in any spelling.

        The error about a request that a server could not read has no id, or null (JSON-RPC 2.0, 5).
        """
        if bytes(self.error) and bytes(self.id) in (b"", b"null"):
            return self.method is None
        return self.is_response and number_of(id_of(self.id)) == message_id


class _Lenient(Message):
    is_strict: ClassVar[bool] = False


LENIENT_BYTES_MAX: Final = 128 * 1024  # that the lenient reader reads: the worst take it 15 ms
REPLACEMENT: Final = "\ufffd"  # stands for what is no text: an id that holds it may be another
_BEFORE_TEXT: Final = b"\xef\xbb\xbf\xfe\xff\0 \t\r\n"  # in UTF-8, and in UTF-16 and UTF-32, which some clients read

_BEGIN: Final = re.compile(rb'(?:\[\s*)?\{\s*"')
_BEGIN_BYTES: Final = 1024

UNREADABLE: Final = (msgspec.MsgspecError, RecursionError, UnicodeDecodeError)  # JSON can be nested too deeply
_Read = TypeVar("_Read")

_message = msgspec.json.Decoder(Message)
_lenient = msgspec.json.Decoder(_Lenient)
_writer = json.JSONEncoder(ensure_ascii=False, check_circular=False, separators=(",", ":"))
_members = msgspec.json.Decoder(dict[str, msgspec.Raw])
_items = msgspec.json.Decoder(list[msgspec.Raw])
_text = msgspec.json.Decoder(str)


def decoded(decoder: msgspec.json.Decoder[_Read], data: bytes | bytearray | msgspec.Raw) -> _Read | None:
    """What a decoder reads in `data`; None if it cannot."""
    if not data:
        return None  # as often: an exception takes long
    try:
        return decoder.decode(data)
    except UNREADABLE:
        return None


def parse(data: bytes | bytearray) -> Message | None:
    """The message in `data`; None if `data` is not one JSON-RPC 2.0 object."""
    message: Message | None
    try:
        if not data.isascii():
            str(data, "utf-8")  # msgspec does not check members that it skips
        message = _message.decode(data)
    except msgspec.ValidationError:
        return None  # other JSON
    except UNREADABLE:
        message = decoded(_lenient, rewritten(data) or b"")
    if message is not None and message.error and bytes(message.error) == b"null":  # some servers always write it
        message.error = ABSENT
    return message


def rewritten(data: bytes | bytearray) -> bytes | None:
    """JSON that says what the lenient reader reads in `data`; None if it cannot, or that is too large for it.

    It is Python's `json`. NaN and what is beyond a double are null; half of a surrogate pair, and bytes that are no
    UTF-8, are U+FFFD; a byte order mark is nothing.
    """
    if len(data) > LENIENT_BYTES_MAX:
        return None
    try:
        text = _writer.encode(_reader.decode(data.decode("utf-8-sig", "replace")))
    except (ValueError, RecursionError):  # it reads no number of 4,301 digits
        return None
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode()


def _finite(text: str) -> float | None:
    number = float(text)
    return number if isfinite(number) else None


_reader = json.JSONDecoder(parse_float=_finite, parse_constant=_finite)


def batch_size(data: bytes) -> int:
    """How many messages a batch has (2025-03-26); 0 if `data` is no array."""
    items = decoded(_items, data) or []
    return len(items)


def looks_like_messages(data: bytes) -> bool:
    """Whether `data`, which is no message, may be a batch, or a message that another reader can read."""
    return data.lstrip(_BEFORE_TEXT)[:1] in (b"{", b"[")


def begins_like_messages(data: bytes) -> bool:
    """The same by the first bytes: an object with a member, alone or in an array. A log writes `[INFO]` too."""
    return _BEGIN.match(data.lstrip(_BEFORE_TEXT)[:_BEGIN_BYTES].replace(b"\0", b"")) is not None


def may_be_messages(data: bytes) -> bool:
    """The same of a whole text, by what it says: JSON that has no member of a message is none for any reader."""
    if (items := decoded(_items, data)) is not None:
        return any(may_be_messages(bytes(item)) for item in items if bytes(item)[:1] == b"{")
    if (names := decoded(_members, data)) is not None:
        return "jsonrpc" in names or ("id" in names and not names.keys().isdisjoint(("result", "error")))
    return begins_like_messages(data)


def member(value: msgspec.Raw | bytes | bytearray, name: str) -> msgspec.Raw:
    """The member `name`, without escapes, of raw JSON; ABSENT if it has none, or is no object. It takes no memory."""
    if not len(value):
        return ABSENT
    try:
        found: msgspec.Raw = _only(name).decode(value).value
    except UNREADABLE:
        return ABSENT
    return found


@lru_cache
def _only(name: str) -> msgspec.json.Decoder[Any]:
    """The decoder of an object of which one member is read."""
    fields = [("value", msgspec.Raw, ABSENT)]
    return msgspec.json.Decoder(msgspec.defstruct("_Only", fields, rename={"value": name}))


def text(value: msgspec.Raw | bytes) -> str | None:
    """The string that raw JSON is; None if it is none."""
    return decoded(_text, value)


def members(value: msgspec.Raw | bytes) -> dict[str, msgspec.Raw]:
    """The members of a small raw JSON object, by name; none if it is no object."""
    return decoded(_members, value) or {}


def same_id(one: msgspec.Raw | bytes, other: msgspec.Raw | bytes) -> bool:
    """Whether two raw ids are the same. `1` and `"1"` are not; two spellings of one string are."""
    return bytes(one) == bytes(other) or id_of(one) == id_of(other)


Id: TypeAlias = str | bytes
"""An id to look up by: the text of a string, the bytes of anything else. So `1` and `"1"` are two."""


def id_of(raw: msgspec.Raw | bytes) -> Id:
    data = bytes(raw)
    found = text(data) if data.startswith(b'"') else None
    return data if found is None else found


def number_of(message_id: Id) -> int | None:
    """The whole number that an id is in any spelling of it, such as 7, 7.0 and "7"; None if it is none."""
    try:
        number = float(message_id if isinstance(message_id, str) else message_id.decode())
    except ValueError:
        return None
    return int(number) if number.is_integer() else None


def request(message_id: int, method: str, params: dict[str, Any]) -> bytes:
    return orjson.dumps({"jsonrpc": "2.0", "id": message_id, "method": method, "params": params})


def result(message_id: bytes, value: bytes) -> bytes:
    return b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (message_id, value)


def error(message_id: bytes, code: int, message: str, data: object = None) -> bytes:
    """The bytes of an error response. `message_id` is raw JSON, empty if the id of the request is unknown."""
    fault = {"code": code, "message": message} | ({} if data is None else {"data": data})
    return b'{"jsonrpc":"2.0","id":%b,"error":%b}' % (message_id or b"null", orjson.dumps(fault))


def find(data: bytes, *path: str) -> tuple[int, int] | None:
    """The (start, end) of the value at `path` in the JSON `data`, of two the last; None if there is none."""
    copy = bytearray(data)
    value: msgspec.Raw | bytearray = copy
    for name in path:
        value = member(value, name)
    view = memoryview(value)
    if not view:
        return None
    start = start_of(view, copy)
    return start, start + len(view)


def start_of(view: memoryview, buffer: bytearray) -> int:
    """Where in `buffer` a view of it begins. The buffer is overwritten.

    A binary search: half of the remaining bytes are marked, and the view shows whether it begins among them. This is
    exact and fast for any bytes. A search for the text of the value is neither, if a hostile document repeats the text.
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
    """`data` with `name` inserted first into the object at `path`, every other byte as it was. Raises LookupError."""
    span = find(data, *path)
    if span is None or data[span[0] : span[0] + 1] != b"{":
        raise LookupError("/".join(path))
    at = span[0] + 1
    comma = b"" if data[at : span[1]].lstrip().startswith(b"}") else b","
    return b'%b"%b":%b%b%b' % (data[:at], name.encode(), value, comma, data[at:])


def without_meta(data: bytes) -> bytes:
    """A result or params without the member `_meta`. That belongs to the message, not to the object in it."""
    if not bytes(member(data, "_meta")) or (span := find(data, "_meta")) is None:
        return data
    name_end = data.rindex(b'"', 0, span[0])
    name_at = data.rindex(b'"', 0, name_end)  # no spelling of this name has a quote in it
    before, behind = data[:name_at].rstrip(), data[span[1] :].lstrip()
    if behind.startswith(b","):
        return before + behind[1:]
    return before.removesuffix(b",") + behind


def replace(data: bytes, path: tuple[str, ...], value: bytes) -> bytes:
    """`data` with the value at `path` replaced. Every other byte stays. Raises LookupError if there is no value."""
    span = find(data, *path)
    if span is None:
        raise LookupError("/".join(path))
    return data[: span[0]] + value + data[span[1] :]


class _Error(msgspec.Struct):
    code: Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]  # logs have no larger numbers


_error = msgspec.json.Decoder(_Error)


def code_of(error: msgspec.Raw | bytes) -> int | None:
    """The code of the error of a response; None if it has none."""
    found = decoded(_error, error)
    return None if found is None else found.code
