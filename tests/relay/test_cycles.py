"""No exchange leaves a reference cycle, however it ends.

In: exchanges of every kind, with the collector off. Out: the collector finds nothing of the gateway's (`garbage.py`).
Always: each exchange has a gateway of its own. tests/soak looks for the same in many at once.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeAlias

import pytest

from tests.garbage import kept_garbage, left_in_cycles
from tests.launch import Gateways, eventually
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
    response,
    result,
    stream,
    task,
)
from tests.relay.rig import Rig, Server, body, rig_with

TEXT = b"Content-Type: text/plain"
SWEEP_S = 0.02  # of the gateway's own, which sweeps once a second
How: TypeAlias = Callable[[Rig], Awaitable[None]]


async def answered(rig: Rig) -> None:
    one, peer = await rig.begin(post(call("ping")))
    await peer.send(response())
    await one.response()
    await one.close()


async def closed_by_the_upstream(rig: Rig) -> None:
    one, peer = await rig.begin(request())
    await peer.send(b"HTTP/1.1 200 OK\r\n\r\nuntil the end")
    peer.finish()
    await one.response()


async def cut_by_the_upstream(rig: Rig) -> None:
    for half in (b"", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf"):
        one, peer = await rig.begin(post(call("tools/call")))
        await peer.send(half)
        if half:
            await one.hears(b"half")
        peer.reset()
        await one.response()


async def no_http(rig: Rig) -> None:
    await rig.exchange(request(), b"SSH-2.0\r\n\r\n")


async def left_by_the_client(rig: Rig) -> None:
    one, peer = await rig.begin(request())
    await peer.send(stream() + chunk(event(b"1")))
    await one.hears(b"data: 1")
    one.reset()
    await peer.ends()


async def uploaded(rig: Rig) -> None:
    one = await rig.client(request(b"PUT", fields=[TEXT, b"Content-Length: 4"]), b"ab", b"cd")
    await (await rig.upstream.request()).send(response())
    await one.response()


async def an_upload_that_the_client_leaves(rig: Rig) -> None:
    one = await rig.client(request(b"PUT", fields=[TEXT, b"Content-Length: 4"]), b"ab")
    peer = await rig.upstream.head()
    one.reset()
    await peer.ends()


async def an_upload_that_the_upstream_cuts(rig: Rig) -> None:
    one = await rig.client(request(b"PUT", fields=[TEXT, b"Content-Length: 4"]), b"ab")
    peer = await rig.upstream.head()
    peer.reset()
    await one.response()


async def an_upload_that_is_malformed(rig: Rig) -> None:
    one = await rig.client(request(b"PUT", fields=[TEXT, b"Transfer-Encoding: chunked"]), b"zz\r\n")
    await one.response()


async def refused(rig: Rig) -> None:
    await rig.ask(b"\0\r\n\r\n")
    await rig.ask(request(host=b"evil.example"))
    rig.serve(Server({None: page([task("t-1")])}))  # it is asked whether it accepts the caller
    await rig.ask(rig.post(filtered(status=7)))


async def edited(rig: Rig) -> None:
    await rig.exchange(post(call("initialize")), stream() + chunk(event(result(1, initialized()))) + LAST_CHUNK)


async def crawled(rig: Rig) -> None:
    rig.serve(Server({None: page([task("t-1")], "a"), "a": page([task("t-2")])}))
    await rig.ask(rig.post(filtered()))


async def crawled_on_streams(rig: Rig) -> None:
    one, peer = await rig.begin(rig.post(filtered()))
    crawl_id = body(rig.upstream.requests[0])["id"]
    await peer.send(stream() + chunk(event(notification("x")) + event(result(crawl_id, page([])))))
    await one.response()
    await peer.send(LAST_CHUNK)


async def a_crawl_that_fails(rig: Rig) -> None:
    await rig.exchange(rig.post(filtered()), response(b"", status=b"500 Oh"))


async def a_crawl_that_is_cut(rig: Rig) -> None:
    one = await rig.client(rig.post(filtered()))
    for number in (1, 2):  # a dropped connection is tried once more
        (await rig.upstream.request(number)).reset()
    await one.response()


async def a_crawl_that_the_client_leaves(rig: Rig) -> None:
    one, peer = await rig.begin(rig.post(filtered()))
    one.reset()
    await peer.ends()


async def a_task_asked_for_in_vain(rig: Rig) -> None:
    await rig.exchange(rig.post(filtered(taskIds=["t-1", "t-2"])), response(b"", status=b"500 Oh"))


HOW: list[How] = [
    answered,
    closed_by_the_upstream,
    cut_by_the_upstream,
    no_http,
    left_by_the_client,
    uploaded,
    an_upload_that_the_client_leaves,
    an_upload_that_the_upstream_cuts,
    an_upload_that_is_malformed,
    refused,
    edited,
    crawled,
    crawled_on_streams,
    a_crawl_that_fails,
    a_crawl_that_is_cut,
    a_crawl_that_the_client_leaves,
    a_task_asked_for_in_vain,
]


async def swept(rig: Rig) -> bool:
    """Whether no connection to the upstream is known any more."""
    assert rig.gateway.app is not None
    return all(pool.is_empty for pool in rig.gateway.app._pools.of.values())


@pytest.mark.parametrize("how", HOW, ids=lambda how: how.__name__)
async def test_what_an_exchange_leaves_behind_is_in_no_cycle(
    gateways: Gateways, how: How, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An upstream connection, its parser and its response once referred to one another."""
    monkeypatch.setattr("gateway.app._SWEEP_S", SWEEP_S)
    async with rig_with(gateways, upstream={"idle_timeout": "0s"}) as rig:
        idle = asyncio.all_tasks()
        with kept_garbage():
            await how(rig)
            await rig.close()

            async def all_closed() -> bool:
                ended = not asyncio.all_tasks() - idle - {asyncio.current_task()}
                return ended and (await rig.gateway.metrics())["taskgate_connections", ()] == 0

            await eventually(all_closed, "the end of every connection")
            await eventually(lambda: swept(rig), "a sweep of the pool")
            assert not left_in_cycles()
