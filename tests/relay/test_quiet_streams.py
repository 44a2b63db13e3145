"""Event streams that are kept open with comments (`keepalive_comments`, DESIGN 3.4).

In: streams that are quiet for a while, at every place within their events. Out: the same events, and comments between
them. Always: without its comments the body has the upstream's bytes. A stream that gets comments shows how long the
others were quiet.
"""

import asyncio
import gzip
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final, TypeAlias

import httpx
import httpx_sse
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.launch import Gateways, port_of
from tests.launch import settings as config
from tests.peer import GAP_S, Client, Peer
from tests.relay.messages import (
    LAST_CHUNK,
    call,
    chunk,
    event,
    filtered,
    initialized,
    notification,
    page,
    post,
    request,
    result,
    stream,
    task,
)
from tests.relay.rig import Rig, body, final, rig_with

COMMENT: Final = b": keepalive\n"
QUIET: Final = "60ms"
LOG: Final = {"level": "info"}
BOM: Final = b"\xef\xbb\xbf"
CALL: Final = post(call("tools/call", name="x"))
LISTEN: Final = request(fields=[b"Accept: text/event-stream"])
RESUMED: Final = request(fields=[b"Accept: text/event-stream", b"Last-Event-ID: 7", b"Mcp-Session-Id: s"])
INITIALIZE: Final = post(call("initialize"))
KINDS: Final = [CALL, LISTEN, RESUMED, INITIALIZE]
IDS: Final = ["POST", "GET", "resumed", "initialize"]

Seen: TypeAlias = tuple[str, str, str]


@asynccontextmanager
async def kept_open(gateways: Gateways, quiet: str = QUIET, **changed: Any) -> AsyncIterator[Rig]:
    async with rig_with(gateways, log=LOG, upstream={"keepalive_comments": quiet}, **changed) as rig:
        yield rig


async def opened(rig: Rig, asked: bytes, *sent: bytes, head: bytes | None = None) -> tuple[Client, Peer]:
    """A client and the upstream's end of an exchange, of whose answer the head and these pieces have come."""
    one, peer = await rig.begin(asked)
    await peer.send(stream() if head is None else head)
    await one.hears(b"\r\n\r\n")
    for piece in sent:
        await peer.send(piece)
    return one, peer


async def beats(rig: Rig, times: int = 3) -> None:
    """Return when a stream that was quiet since now has got so many comments."""
    clock, peer = await opened(rig, LISTEN)
    await clock.hears(COMMENT, times)
    await clock.close()
    await peer.ends()


def read(data: bytes) -> list[Seen]:
    """The events (type, last id, data) that a browser hands out: WHATWG HTML, "Interpreting an event stream"."""
    seen, kind, last_id, lines = list[Seen](), "", "", list[str]()
    text = data.removeprefix(BOM).decode(errors="replace")
    for line in re.split("\r\n|\r|\n", text)[:-1]:
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if line == "":
            if lines:
                seen.append((kind or "message", last_id, "\n".join(lines)))
            kind, lines = "", []
        elif name == "event":
            kind = value
        elif name == "data":
            lines.append(value)
        elif name == "id" and "\0" not in value:
            last_id = value
    return seen


def test_the_reader_of_events() -> None:
    assert read(BOM + b"data: a\rdata:b\r\n\nid: 1\nevent: x\n\ndata\n\n:c\ndata:  d\n\ndata: no") == [
        ("message", "", "a\nb"), ("message", "1", ""), ("message", "1", " d"),
    ]  # fmt: skip


# ---- where comments are ----


@pytest.mark.parametrize("asked", KINDS, ids=IDS)
@pytest.mark.parametrize("version", [b"HTTP/1.1", b"HTTP/1.0"])
@pytest.mark.parametrize("ended", ["chunked", "close"])
async def test_a_quiet_stream_gets_comments(gateways: Gateways, asked: bytes, version: bytes, ended: str) -> None:
    async with kept_open(gateways) as rig:
        head = stream() if ended == "chunked" else b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
        one, peer = await opened(rig, asked.replace(b"HTTP/1.1", version), head=head)
        await one.hears(COMMENT, 2)
        sent = event(notification("x"), b"id: 1") + event(result(7, {}))
        await peer.send(chunk(sent) if ended == "chunked" else sent)
        await one.hears(sent[-20:])
        known = one.received.count(COMMENT)
        await one.hears(COMMENT, known + 2)
        await (peer.send(LAST_CHUNK) if ended == "chunked" else peer.close())
        got = await one.response()
        assert got.whole and got.body.startswith(COMMENT) and got.body.endswith(COMMENT)
        assert got.body.replace(COMMENT, b"") == sent
        assert got.framing == ("chunked" if version == b"HTTP/1.1" and ended == "chunked" else "close")


async def test_the_python_sdks_reader_sees_no_event_in_a_comment(gateways: Gateways) -> None:
    """With a blank line behind the comment it would see an empty event: it keeps the id of the last one."""
    async with kept_open(gateways) as rig:
        one, peer = await opened(rig, CALL, chunk(event(b"1", b"id: 1")))
        await one.hears(COMMENT, 2)
        await peer.send(chunk(event(b"2")), LAST_CHUNK)
        kind = {"content-type": "text/event-stream"}
        read_so = httpx_sse.EventSource(httpx.Response(200, headers=kind, content=(await one.response()).body))
        assert [seen.data for seen in read_so.iter_sse()] == ["1", "2"]


async def test_a_stream_that_is_not_quiet_gets_none(gateways: Gateways) -> None:
    """Time counts from the last piece."""
    async with kept_open(gateways, "2s") as rig:
        one, peer = await opened(rig, CALL)
        clock, _ = await opened(rig, LISTEN)
        while COMMENT not in clock.received:
            await peer.send(chunk(event(b"1")))
            await asyncio.sleep(0.2)
        await peer.send(LAST_CHUNK)
        assert COMMENT not in (await one.response()).body


async def test_none_unless_configured(gateways: Gateways) -> None:
    async with kept_open(gateways) as rig, rig_with(gateways) as other:
        one, peer = await opened(other, LISTEN, chunk(event(b"1")))
        await beats(rig)
        await peer.send(LAST_CHUNK)
        assert (await one.response()).body == event(b"1")


async def test_none_before_the_head_and_none_behind_the_end(gateways: Gateways) -> None:
    async with kept_open(gateways) as rig:
        one, peer = await rig.begin(CALL)
        await beats(rig)
        assert not one.received
        await peer.send(stream() + LAST_CHUNK)
        await one.response()
        await beats(rig)
        assert one.received.endswith(b"\r\n\r\n0\r\n\r\n")


async def test_none_behind_an_end_that_comes_before_the_request_is_whole(gateways: Gateways) -> None:
    """The exchange goes on: the upstream gets the rest of the request."""
    async with kept_open(gateways) as rig:
        one = await rig.client(request(b"PUT", fields=[b"Content-Length: 2"]), b"1")
        peer = await rig.upstream.head()
        await peer.send(stream() + LAST_CHUNK)
        await one.response()
        await beats(rig)
        await one.send(b"2")
        await rig.upstream.request()
        assert one.received.endswith(b"\r\n\r\n0\r\n\r\n")


PACKED: Final = gzip.compress(event(b"1"))
NOT_TO_TOUCH: Final = {
    "length": (b"Content-Type: text/event-stream\r\nContent-Length: %d" % (2 * len(event(b"1"))), event(b"1")),
    "gzip": (b"Content-Type: text/event-stream\r\nContent-Encoding: gzip", PACKED),
    "br": (b"Content-Type: text/event-stream\r\nContent-Encoding: br", b"br"),
    "coded transfer": (b"Content-Type: text/event-stream\r\nTransfer-Encoding: gzip", PACKED),
    "JSON": (b"Content-Type: application/json", b" "),
    "text": (b"Content-Type: text/plain", b"\n\n"),
    "an error": (b"Content-Type: text/event-stream", b"\n\n"),
    "a part": (b"Content-Type: text/event-stream", b"\n\n"),
}


@pytest.mark.parametrize("what", NOT_TO_TOUCH)
@pytest.mark.parametrize("asked", [CALL, LISTEN], ids=["POST", "GET"])
async def test_a_body_that_takes_no_comments_stays_as_it_is(gateways: Gateways, what: str, asked: bytes) -> None:
    """Its length is known; it is encoded, as a whole or for its transfer; it is no event stream."""
    status = {"an error": b"500 Oh", "a part": b"206 Part"}.get(what, b"200 OK")
    fields, half = NOT_TO_TOUCH[what]
    async with kept_open(gateways) as rig:
        one, peer = await opened(rig, asked, half, head=b"HTTP/1.1 %b\r\n%b\r\n\r\n" % (status, fields))
        await beats(rig)
        await peer.send(half)
        peer.finish()
        got = await one.response()
        assert (got.body, got.whole) == (2 * half, True)


async def test_a_head_request_gets_none(gateways: Gateways) -> None:
    async with kept_open(gateways) as rig:
        one, peer = await rig.begin(request(b"HEAD"))
        await peer.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n")
        assert (await one.response()).whole
        await beats(rig)
        assert one.received.endswith(b"\r\n\r\n") and COMMENT not in one.received


async def test_a_stream_that_is_unpacked_to_be_edited_gets_them(gateways: Gateways) -> None:
    """The result of `initialize`: the client gets no encoded body."""
    async with kept_open(gateways) as rig:
        packed = gzip.compress(event(result(1, initialized())))
        one, peer = await opened(rig, INITIALIZE, chunk(packed[:20]), head=stream(b"Content-Encoding: gzip"))
        await one.hears(COMMENT)
        await peer.send(chunk(packed[20:]), LAST_CHUNK)
        got = await one.response()
        assert got.value(b"content-encoding") is None and got.body.startswith(COMMENT)
        assert "filter" in final(got)["result"]["capabilities"]["tasks"]["list"]


async def test_the_gateways_own_stream_gets_them(gateways: Gateways) -> None:
    """A message came on the stream of a refresh, which takes its time."""
    async with kept_open(gateways) as rig:
        one, peer = await rig.begin(rig.post(filtered()))
        await peer.send(stream() + chunk(event(notification("x"))))
        await one.hears(COMMENT, 2)
        asked = body(rig.upstream.requests[0])["id"]
        await peer.send(chunk(event(result(asked, page([task("t-1")])))), LAST_CHUNK)
        assert len(final(await one.response())["result"]["tasks"]) == 1


# ---- between events only ----

LINE_ENDS: Final = [b"\n", b"\r", b"\r\n"]
LINES: Final = st.sampled_from(
    [b"data: 1", b"data", b'data:{"a": "\xc3\xa9"}', b"id: 7", b"event: endpoint", b"event: x", b"retry: 5", b": ping",
     b"data: /mcp?session_id=1"]
)  # fmt: skip
END: Final = st.sampled_from(LINE_ENDS)
EVENT: Final = st.builds(
    lambda lines, ends, last: b"".join(line + end for line, end in zip(lines, ends, strict=False)) + last,
    st.lists(LINES, max_size=3),
    st.lists(END, min_size=3, max_size=3),
    END,
)
BODIES: Final = st.builds(
    lambda bom, events: bom + b"".join(events), st.sampled_from([b"", BOM]), st.lists(EVENT, min_size=1, max_size=3)
)


def is_between(head: bytes) -> bool:
    """Whether what was sent ends with an empty line, or is nothing."""
    return not head or re.search(rb"(?:\A|\n|\r)(?:\n|\r\n?)\Z", head.replace(b"\r\n", b"\n")) is not None


@pytest.mark.parametrize("asked", KINDS, ids=IDS)
@settings(deadline=None, max_examples=5, suppress_health_check=list(HealthCheck), phases=[Phase.generate])
@given(data=BODIES)
async def test_comments_stand_between_events_wherever_a_stream_pauses(
    gateways: Gateways, asked: bytes, data: bytes
) -> None:
    """One stream for each byte behind which it pauses. The same events come out; only comments were added."""
    data += b"data: end\n\n"
    async with kept_open(gateways) as rig:
        streams = [await opened(rig, asked, *([chunk(data[:at])] if at else [])) for at in range(len(data))]
        await beats(rig)
        for at, (_, peer) in enumerate(streams):
            await peer.send(chunk(data[at:]), LAST_CHUNK)
        for at, (one, _) in enumerate(streams):
            got = (await one.response()).body
            told = at, got
            assert COMMENT in got or not is_between(data[:at]), told
            places = [found.start() for found in re.finditer(re.escape(COMMENT), got)]
            assert all(is_between(got[:place].replace(COMMENT, b"")) for place in places), told
            expected = data.removeprefix(BOM) if got.startswith(COMMENT) else data
            assert got.replace(COMMENT, b"") == expected, told
            assert read(got) == read(data), told


# ---- clients, upstreams, reloads ----


async def test_comments_do_not_pile_up_before_a_client_that_does_not_read(gateways: Gateways) -> None:
    """Whole events wait in the gateway, which reads on: the client has yet to take what was sent."""
    async with kept_open(gateways) as rig:
        one, peer = await opened(rig, LISTEN)
        assert rig.gateway.app is not None
        [connection] = rig.gateway.app._listener.connections
        one.pause()
        events = 0
        while not connection.has_unsent:
            await peer.send(chunk(event(b"x" * 10_000)))
            await asyncio.sleep(GAP_S)
            events += 1
        await beats(rig, 5)
        await peer.send(LAST_CHUNK)
        one.resume()
        got = await one.response()
        assert got.whole and got.body.replace(COMMENT, b"") == events * event(b"x" * 10_000)
        behind_the_last_event = got.body.rpartition(b"\n\n")[2]
        assert behind_the_last_event.count(COMMENT) <= 1  # one, before there was much to take


async def test_an_upstream_that_stops_is_still_found(gateways: Gateways) -> None:
    """Comments to the client say nothing of the upstream: no answer in time, and a body that stops (DESIGN 7.9)."""
    async with kept_open(gateways, "50ms", limits={"stall_timeout": "1s"}) as rig:
        late, peer = await rig.begin(CALL)
        await peer.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nX-")
        assert (await late.response()).status == 504
        stuck, peer = await rig.begin(CALL)
        await peer.send(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\nhalf")
        assert await stuck.ends() in ("fin", "rst")
        assert not (await stuck.response()).whole


async def test_a_stream_that_the_upstream_cuts_is_not_ended(gateways: Gateways) -> None:
    async with kept_open(gateways) as rig:
        one, peer = await opened(rig, LISTEN)
        await one.hears(COMMENT)
        peer.reset()
        await one.ends()
        assert not (await one.response()).whole


async def test_a_reload_changes_it_for_new_streams(gateways: Gateways) -> None:
    async with rig_with(gateways, log=LOG) as rig:
        old, peer = await opened(rig, LISTEN)
        gateway = rig.gateway

        def reload(quiet: str) -> None:
            changed = {"log": LOG, "upstream": {"keepalive_comments": quiet}}
            gateway.reload(config(gateway.port, gateway.admin, port_of(rig.place.listening), changed))

        reload(QUIET)
        new, _ = await opened(rig, LISTEN)
        await new.hears(COMMENT, 3)
        assert COMMENT not in old.received
        reload("0s")
        off, _ = await opened(rig, LISTEN)
        await new.hears(COMMENT, new.received.count(COMMENT) + 3)
        assert COMMENT not in off.received
        await peer.send(LAST_CHUNK)
        assert (await old.response()).whole
