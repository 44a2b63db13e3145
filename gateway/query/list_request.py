"""A client's message is read: once, and in turns of the loop if it is large. A `tasks/list` says what it asks for.

In: a body. Out: its `ClientMessage`, None if it is no message. Always: work is in proportion to bytes. The position is
what the params alone ask for: whether the gateway answers is decided elsewhere.
"""

import asyncio
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, Self

import msgspec

from gateway.errors import without_frames
from gateway.mcp import client_message, ids_in_messages, jsonrpc
from gateway.mcp.capabilities import LAST_REVISION
from gateway.mcp.client_message import ClientMessage
from gateway.query import criteria, cursor
from gateway.query.criteria import BadQuery, Fault, Params
from gateway.query.cursor import Position

SAME_BYTES_MAX: Final = 1024  # of params that are remembered as they were read
_SAME_MAX: Final = 256
_LARGE_BYTES: Final = 512 * 1024  # each part of a larger body is read in a turn of its own
_CURSOR_KEPT: Final = 1024  # bytes of a cursor, to be shown


class ListRequest(ClientMessage, frozen=True, kw_only=True):
    """A request for a `tasks/list`. `position` is None if its params name no criterion and no cursor of ours."""

    position: Position | BadQuery | None = None
    is_later: bool = False  # of a later revision (DESIGN 3.9)
    cursor: bytes = b""  # raw, its beginning; empty for null too
    ignored: Sequence[str] = ()  # names of members that are not read, "..." for more
    misspelt: Mapping[str, str] = {}  # those that are nearly criteria, each with the criterion

    def passed(self) -> Self:
        return msgspec.structs.replace(self, position=None)


async def read(body: bytes, has_guards: bool = False, has_owners: bool = False) -> ClientMessage | None:
    """The message in a body. `has_guards`: what is doubtful is looked for; `has_owners`: and related tasks."""
    if is_large := len(body) > _LARGE_BYTES:
        await asyncio.sleep(0)
    copy = bytearray(body) if has_guards else None  # it is overwritten at last
    if not body or (message := jsonrpc.parse(copy or body)) is None:
        return None
    raw, kind = message.params, ClientMessage
    if is_large:
        await asyncio.sleep(0)
    said, arguments, ttl = client_message.fields_of(message)
    if message.method == "tasks/list" and message.is_request:
        kind = ListRequest
        if len(raw) <= SAME_BYTES_MAX:
            said |= small_list(bytes(raw))
        else:
            if is_large:
                await asyncio.sleep(0)
            params = criteria.params(raw)
            if is_large:
                await asyncio.sleep(0)
            said |= _list(raw, params)
    if copy is not None:
        if is_large:
            await asyncio.sleep(0)
        said |= {"ttl_at": jsonrpc.start_of(memoryview(ttl), copy) if len(ttl) else 0, "ttl_bytes": len(ttl)}
        said["doubts"] = ids_in_messages.doubtful(message, body, copy, arguments)
    if has_owners:
        if is_large:
            await asyncio.sleep(0)
        said["related"] = ids_in_messages.related(message, body)
    if is_large:
        await asyncio.sleep(0)
    return kind(**said)


@lru_cache(_SAME_MAX)
def small_list(raw: bytes) -> dict[str, Any]:
    """What small params of a `tasks/list` say. A screen that polls sends the same again and again."""
    said = _list(raw, criteria.params(raw))
    if isinstance(position := said["position"], Position):
        said["position"] = msgspec.structs.replace(position, comes_again=True)
    return said


def _list(raw: msgspec.Raw | bytes, params: Params) -> dict[str, Any]:
    revision = jsonrpc.member(params.meta, "io.modelcontextprotocol/protocolVersion")
    is_later = bytes(revision).strip(b'"') > LAST_REVISION
    try:
        position = None if is_later else _position(params)
    except BadQuery as bad:
        position = without_frames(bad)
    ignored = criteria.ignored(raw, params)
    given = b"" if bytes(params.cursor) == b"null" else bytes(params.cursor)[:_CURSOR_KEPT]
    return {
        "position": position,
        "is_later": is_later,
        "cursor": given,
        "ignored": ignored,
        "misspelt": criteria.misspelt(ignored),
    }


def _position(params: Params) -> Position | BadQuery | None:
    """The page that a `tasks/list` asks for; None if it names no criterion and no cursor of ours. Raises BadQuery."""
    query = criteria.read(params)
    if bytes(params.cursor) in (b"", b"null"):
        return None if query is None else Position(query)
    given = jsonrpc.text(params.cursor)
    position = None if given is None else cursor.decode(given)
    if query is None:
        return position
    if position is None:
        raise BadQuery([criteria.fault("cursor", bytes(params.cursor), cursor.ALLOWED)])
    if given is not None and cursor.is_spelled(given):
        raise BadQuery([criteria.fault("cursor", bytes(params.cursor), "criteria in a cursor or beside it, not both")])
    if query != position.query:
        raise BadQuery([Fault("cursor", "a cursor of a list with other criteria", cursor.ALLOWED)])
    return position
