"""A fault of the gateway itself: the client gets an error that says so, and the log and the metrics tell the operator.

The configurations here cannot come from a file: `gateway/config` refuses their values. They bring about exceptions.
"""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

import pytest
from msgspec.structs import replace

from gateway import config as gateway_config
from gateway.app import App
from gateway.config import Config, GuardLimits
from gateway.transport.body import Body
from tests.launch import Gateway, changes, listening, port_of, ports, settings
from tests.peer import Peer
from tests.relay.http1 import Message
from tests.relay.messages import call, dumps, filtered, notification, result, task
from tests.relay.rig import Place, Rig, body, final, gives, rig_at
from tests.relay.wire import LAST_CHUNK, chunk, event, request, response, stream

pytestmark = pytest.mark.usefixtures("harness_alone")
NO_INSTANT_S: Final = 1e13  # so long ago that no date can say it
NAMED: Final = filtered(7, taskIds=["t-1"])


def fails(good: Config) -> Config:
    """A configuration with which every relayed request fails, and every query for ids."""
    upstream = replace(good.upstreams[0], response_timeout="soon")
    return replace(good, upstreams=(upstream,), index=replace(good.index, max_age=NO_INSTANT_S))


@asynccontextmanager
async def faulty(changed: Callable[[Config], Config] = fails) -> AsyncIterator[Rig]:
    with listening() as sock, ports() as (listen, admin):
        app = App(changed(gateway_config.parse(json.dumps(settings(listen, admin, port_of(sock))), "test.yaml")))
        await app.start()
        try:
            async with rig_at(Place(Gateway(listen, admin, app=app), sock)) as rig:
                yield rig
        finally:
            await app.stop()


def check_error(message: Any) -> None:
    assert (message["id"], message["error"]["code"]) == (7, -32603)
    assert message["error"]["message"] == "Internal Server Error: a fault of taskgate itself; its log says more"


async def check_told(rig: Rig, before: Any, caplog: pytest.LogCaptureFixture, exception: type[Exception]) -> None:
    """The fault is counted and logged, with its traceback; nothing says that the client left."""
    after = await rig.gateway.metrics()
    assert changes(before, after, "taskgate_failures_total", kind="Internal", upstream="up") == 1
    assert changes(before, after, "taskgate_requests_total", status="499") == 0
    [told] = [r for r in caplog.records if r.message == "a request could not be handled"]
    assert told.exc_info is not None and told.exc_info[0] is exception
    [failed] = [r for r in caplog.records if r.message == "failed"]
    assert failed.failure == "Internal"  # type: ignore[attr-defined]


@pytest.mark.parametrize(("message", "exception"), [(NAMED, ValueError), (call("ping", 7), TypeError)])
async def test_a_request_that_meets_a_fault_of_ours_gets_500(
    caplog: pytest.LogCaptureFixture, message: Any, exception: type[Exception]
) -> None:
    """It got an empty reply, and the log said that the client had left."""
    caplog.set_level("INFO", "taskgate")
    async with faulty() as rig:
        rig.serve(gives(task("t-1")))
        before = await rig.gateway.metrics()
        one = await rig.client(rig.post(message))
        got = await one.response()
        assert (got.status, got.whole) == (500, True)
        check_error(body(got))
        await check_told(rig, before, caplog, exception)
        await one.send(rig.post(call("ping", 8)))
        assert (await one.response(2)).status == 500, "the connection serves on"


async def test_a_query_whose_answer_is_a_stream_already_gets_the_error_on_it(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "taskgate")
    async with faulty() as rig:
        before = await rig.gateway.metrics()
        one, peer = await rig.begin(rig.post(NAMED))
        asked = body(rig.upstream.requests[0])["id"]
        told = event(notification("notifications/message", level="info", data="first"))
        await peer.send(stream() + chunk(told + event(result(asked, task("t-1")))) + LAST_CHUNK)
        got = await one.response()
        assert (got.status, got.whole, b'"first"' in got.body) == (200, True, True)
        check_error(final(got))
        await check_told(rig, before, caplog, ValueError)


TASK = call("tools/call", 7, name="work", task={"ttl": 9_000_000}, arguments={"text": "x" * 500})
BODIES: dict[str, bytes] = {
    "a message": dumps(TASK),
    "a large message": dumps({**TASK, "more": "x" * 100_000}),
    "no message": b"x" * 500,
}


@pytest.mark.parametrize("guarded", [False, True])
@pytest.mark.parametrize("kind", BODIES)
async def test_a_body_that_lost_bytes_inside_the_gateway_never_goes_up(
    monkeypatch: pytest.MonkeyPatch, kind: str, guarded: bool
) -> None:
    """The server would take the missing bytes from the next client's request (DESIGN 3.5)."""
    feed = Body.feed
    monkeypatch.setattr(Body, "feed", lambda body, piece: feed(body, piece[:-1]))

    def caps(good: Config) -> Config:
        return replace(good, guards=GuardLimits(task_ttl_max=60.0)) if guarded else good

    media = b"text/plain" if kind == "no message" else b"application/json"
    async with faulty(caps) as rig:
        length = b"Content-Length: %d" % len(BODIES[kind])
        asked = request(b"POST", fields=[b"Content-Type: " + media, length]) + BODIES[kind]
        got = await rig.ask(asked)
        assert (got.status, got.whole) == (502, True)
        assert [bytes(peer.received) for peer in rig.upstream.connections if peer.received] == []
        monkeypatch.undo()
        rig.serve(echo)
        assert (await rig.ask(asked)).status == 200


async def echo(asked: Message, peer: Peer) -> bytes:
    return response(asked.body)
