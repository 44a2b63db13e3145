"""The judgement of one conversation: a complete response is the right one, or a 502; an incomplete one looks cut.

What the upstream has answered whole is whole at a client that stays.
"""

import json
import re
from collections.abc import Container
from dataclasses import replace
from typing import Final

from tests.relay.http1 import End, Fields, Malformed, Message, Reader
from tests.relay.messages import Json
from tests.relay.rig import body, told
from tests.rules.test_capabilities import FILTER
from tests.soak.plan import EXACT, MARK, Exchange

_OF_ONE_HOP: Final = (b"connection", b"transfer-encoding", b"content-length")
_FILTER: Final = re.compile(rb'"filter":')
_CAPABILITY: Final = set(json.loads(FILTER))
_FAILED: Final = -32603


def faults(
    exchanges: list[Exchange],
    received: bytes,
    end: End,
    left: bool,
    asked: list[bytes],
    promised: Container[int],
) -> list[str]:
    """The faults in what came.

    `left`: the client went away before; `asked`: the methods it sent until then; `promised`: the numbers of those that
    the upstream has answered whole, or is about to.
    """
    reader = Reader()
    reader.feed(received)
    try:
        came = [response for response in reader.responses(asked, end) if response.is_final]
    except Malformed as error:
        return [f"malformed: {error}"]
    found = []
    for exchange, response in zip(exchanges, came, strict=False):
        why = _foreign(exchange, response)
        if why is None and not exchange.is_hostile:
            why = _whole(exchange, response) if response.whole else _part(exchange, response)
            if exchange.number in promised and not left and (not response.whole or _has_failed(exchange, response)):
                why = f"whole at the upstream, and lost ({why})"
        if why:
            shown = bytes(response.body[:300])
            found.append(f"{exchange.number} {exchange.kind}: {why}: {response.start!r} {response.fields} {shown!r}")
    has_end = bool(came) and (not came[-1].whole or came[-1].framing == "close")
    if len(came) < len(exchanges) and not left and not has_end:
        found.append(f"{exchanges[len(came)].number} {exchanges[len(came)].kind}: no response; connection {end}")
    return found


def _has_failed(exchange: Exchange, response: Message) -> bool:
    """Whether it is the gateway's error: to a filtered list it is the answer of a 200."""
    return response.status == 502 or (exchange.tasks is not None and "error" in told(response)[-1])


def _foreign(exchange: Exchange, response: Message) -> str | None:
    """Whether it is the response to another exchange; the gateway's own have no mark."""
    marks = [mark for mark in response.values(MARK) if mark != b"%d" % exchange.number]
    return f"foreign, of {marks}" if marks else None


def right(exchange: Exchange) -> Message:
    reader = Reader()
    reader.feed(exchange.answered)
    return reader.responses([exchange.method], "fin")[-1]


def _whole(exchange: Exchange, response: Message) -> str | None:
    if response.status == 502:
        said = exchange.method == b"HEAD" or _is_failure(exchange, body(response))
        return None if said else "502 that says something else"
    if exchange.tasks is not None:
        return _list(exchange, response)
    expected = right(exchange)
    if _end_to_end(response) != _end_to_end(expected):
        return "another head"
    death = exchange.death
    is_cut = death is not None and death.at == "response" and (death.persists or not exchange.is_safe)
    if is_cut and not (expected.framing == "close" and death is not None and death.how == "fin"):
        return f"cut, and ended cleanly, after {len(response.body)} of {len(expected.body)} bytes"
    if exchange.is_edited:
        return _edited(response.body, expected.body)
    if (response.body, response.trailers) == (expected.body, expected.trailers):
        return None
    if response.framing == "close" and expected.body.startswith(response.body):
        may_end = death is not None and death.how == "fin" and death.at == "response"
        if may_end and expected.framing == "close":
            return None
        return f"cut, and ended cleanly, after {len(response.body)} of {len(expected.body)} bytes"
    return "complete and wrong"


def _part(exchange: Exchange, response: Message) -> str | None:
    if exchange.tasks is not None or response.status == 502:
        return None
    expected = right(exchange)
    if _end_to_end(response) != _end_to_end(expected):
        return "another head"
    plain = _without_filter(response.body)[0] if exchange.is_edited else response.body
    return None if expected.body.startswith(plain) else "cut, and wrong before that"


def _is_failure(exchange: Exchange, error: Json | None) -> bool:
    if error is None or error.get("error", {}).get("code") != _FAILED:
        return False
    sent = exchange.asked.partition(b"\r\n\r\n")[2]
    return bool(error["id"] == (exchange.number if sent.startswith(b"{") else None))


def _list(exchange: Exchange, response: Message) -> str | None:
    """A filtered list, or an error; as a stream it has other messages first."""
    *others, last = told(response)
    if any(m.get("method") != "notifications/message" for m in others):
        return "other messages"
    if "error" in last:
        return None if _is_failure(exchange, last) else "an error that says something else"
    if response.status != 200 or last.get("id") != exchange.number or "result" not in last:
        return "no list"
    assert exchange.tasks is not None
    tasks, total = last["result"]["tasks"], last["result"]["_meta"]["taskgate/total"]
    if others_tasks := [t["taskId"] for t in tasks if not t["taskId"].startswith(exchange.session)]:
        return f"foreign tasks: {others_tasks}"
    return None if (tasks, total) == (exchange.tasks, len(exchange.tasks)) else f"another list, {total} in all"


def _edited(came: bytes, sent: bytes) -> str | None:
    plain, value = _without_filter(came)
    if plain != sent or EXACT not in plain:
        return "edited elsewhere"
    return None if value is not None and set(value) == _CAPABILITY else "the capability is not what it must be"


def _without_filter(data: bytes) -> tuple[bytes, Json | None]:
    """The result of an `initialize` without the member that was put in, and its value."""
    at = _FILTER.search(data)
    if at is None:
        return data, None
    text = data[at.end() :].decode()
    value, length = json.JSONDecoder().raw_decode(text)
    return data[: at.start()] + text[length:].encode(), value


def _end_to_end(message: Message) -> tuple[bytes, Fields]:
    fields = tuple(f for f in message.fields if f[0].lower() not in _OF_ONE_HOP)
    return replace(message, fields=fields).start, fields
