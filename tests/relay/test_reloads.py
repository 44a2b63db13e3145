"""What a reload changes, and what outlives it: what is under way, and what is known of an upstream (DESIGN 8.6)."""

import json
import logging
import signal
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from gateway import config as gateway_config
from tests.launch import Gateways, eventually, listening, logged, port_of, settings
from tests.relay.messages import call, filtered, notification, page, result, task
from tests.relay.rig import Rig, Server, body, final, ids, own, rig_with
from tests.relay.wire import LAST_CHUNK, chunk, event, post, request, response, stream
from tests.tools import localhost
from tests.upstream import Upstream

TASKS = [task("t-1"), task("t-2", "completed")]
LOG = {"level": "info"}
PAGE = b"Origin: http://localhost:6274"
CORS = b"Access-Control-Allow-Origin: http://localhost:6274"


@asynccontextmanager
async def reloadable(gateways: Gateways, **upstream: Any) -> AsyncIterator[Rig]:
    async with rig_with(gateways, log=LOG, upstream=upstream) as rig:
        yield rig


def reload(rig: Rig, **upstream: Any) -> None:
    """Take over a configuration whose index is another, and what is given of the upstream."""
    gateway = rig.gateway
    changed = {"log": LOG, "index": {"page_size": 7}, "upstream": upstream}
    gateway.reload(rig.settings(**changed))


async def up(rig: Rig) -> float:
    return (await rig.gateway.metrics())["taskgate_upstream_up", (("upstream", "up"),)]


@pytest.mark.parametrize("same_callers", [True, False])
async def test_a_browser_may_still_read_an_error_after_a_reload(gateways: Gateways, same_callers: bool) -> None:
    """The notes for CORS went with the old pool. They do go where callers are told apart by other fields."""
    async with reloadable(gateways) as rig:
        await rig.exchange(rig.post(call("ping"), PAGE), response(b"", CORS))
        reload(rig, **({} if same_callers else {"identity_headers": ["X-Who"]}))
        await rig.upstream.refuse()
        wrong = await rig.ask(rig.post(filtered(7), PAGE))
        assert wrong.status == 502
        assert (wrong.value(b"access-control-allow-origin") is not None) is same_callers


@pytest.mark.parametrize(("before", "after", "status"), [(1, 1, 503), (1, 3, 200), (3, 1, 503)])
async def test_requests_max_counts_those_from_before_a_reload(
    gateways: Gateways, before: int, after: int, status: int
) -> None:
    """More places are there at once; of fewer, those that are taken are used up first."""
    patience = "300ms" if status == 503 else "20s"
    async with reloadable(gateways, requests_max=before, connect_timeout=patience) as rig:
        old, peer = await rig.begin(post(call("ping")))
        reload(rig, requests_max=after, connect_timeout=patience)
        one = await rig.client(post(call("ping")))
        if status == 200:
            await (await rig.upstream.request(2)).send(response())
        assert (await one.response()).status == status
        await peer.send(response(b"old"))
        assert (await old.response()).body == b"old"
        if status == 503:
            assert (await rig.exchange(post(call("ping")), response(b"2"))).body == b"2"


async def test_a_reload_hides_no_recovery(gateways: Gateways) -> None:
    """What was in flight is answered: the upstream counted as down until another request."""
    async with reloadable(gateways, idle_timeout="60s") as rig:
        slow, peer = await rig.begin(post(call("tools/call")))
        lost = await rig.client(request())
        (await rig.upstream.request(2)).reset()
        assert (await lost.response()).status == 502
        assert await up(rig) == 0
        reload(rig)
        assert await up(rig) == 0
        await peer.send(response())
        assert (await slow.response()).status == 200
        assert await up(rig) == 1


async def test_an_upstream_at_another_address_is_another(gateways: Gateways) -> None:
    """Nothing is known of it, and all its places are free."""
    async with reloadable(gateways, requests_max=1, connect_timeout="300ms") as rig:
        old, peer = await rig.begin(post(call("ping")))
        url = f"http://{localhost()}:{port_of(rig.place.listening)}/mcp"
        reload(rig, requests_max=1, connect_timeout="10s", url=url)
        assert (await rig.exchange(post(call("ping")), response(b"new"))).body == b"new"
        await peer.send(response(b"old"))
        assert (await old.response()).body == b"old"


# ---- what is under way ----


async def test_sighup_takes_over_a_new_configuration(gateways: Gateways) -> None:
    with listening() as other:
        async with own(gateways) as rig:
            elsewhere = Upstream(other)
            stream_client, peer = await rig.begin(request(fields=[b"Accept: text/event-stream"]))
            await peer.send(stream() + chunk(event(b"1")))
            waiting, slow = await rig.begin(post(call("tools/call")))
            kept, third = await rig.begin(request())
            await third.send(response(b"old"))
            assert (await kept.response()).body == b"old"

            gateway = rig.gateway
            gateway.renew(settings(gateway.port, gateway.admin, port_of(other)))
            await logged(gateway, "reloaded")

            await kept.send(request())
            fresh = await elsewhere.request()
            await fresh.send(response(b"new"))
            assert (await kept.response(2)).body == b"new"
            await slow.send(response(b"still there"))
            assert (await waiting.response()).body == b"still there", "an answer in flight is finished where it began"
            await peer.send(chunk(event(b"2")))
            await stream_client.hears(b"data: 2")
            await elsewhere.close()


BAD: dict[str, tuple[Any, str]] = {
    "an unknown key": (lambda good: {**good, "colour": "red"}, "colour: "),
    "a wrong type": (lambda good: {**good, "index": {"page_size": "many"}}, "index.page_size"),
    "no upstream": (lambda good: {**good, "upstreams": []}, "upstreams: "),
    "another address": (lambda good: {**good, "listen": "127.0.0.1:1"}, "listen cannot change"),
}


async def test_sighup_with_a_bad_file_changes_nothing_and_says_so(gateways: Gateways) -> None:
    async with own(gateways, Server({None: page(TASKS)})) as rig:
        gateway = rig.gateway
        assert gateway.file is not None
        good = rig.settings()
        for change, named in BAD.values():
            gateway.renew(change(good))
            assert (await logged(gateway, named))["level"] == "error"
            assert (await rig.ask(post(filtered()))).status == 200
            assert (await rig.gateway.metrics())["taskgate_config_last_reload_successful", ()] == 0
        gateway.file.unlink()
        gateway.signal(signal.SIGHUP)
        assert (await logged(gateway, "cannot be read"))["level"] == "error"
        assert (await rig.ask(post(filtered()))).status == 200
        gateway.renew({**good, "index": {"page_size": 1}})
        await logged(gateway, "reloaded")
        listed = final(await rig.ask(post(filtered(status=["working", "completed"]))))
        assert len(listed["result"]["tasks"]) == 1, "and a good one is taken over afterwards"
        after = await rig.gateway.metrics()
        assert after["taskgate_config_last_reload_successful", ()] == 1
        assert time.time() - after["taskgate_config_last_reload_success_timestamp_seconds", ()] < 10


async def test_what_a_reload_finds_under_way_keeps_its_time_limit(gateways: Gateways) -> None:
    """The deadlines of the old configuration's upstream connections once went unchecked."""
    async with own(gateways, upstream={"response_timeout": "2s"}) as rig:
        one = await rig.client(post(call("ping", 7)))
        await rig.upstream.request()
        gateway = rig.gateway
        gateway.renew(rig.settings())
        await logged(gateway, "reloaded")
        assert (await one.response()).status == 504


@pytest.fixture
def same_logging() -> Iterator[None]:
    root, ours = logging.getLogger(), logging.getLogger("taskgate")
    kept = root.handlers[:], ours.handlers[:], ours.propagate, ours.level
    yield
    root.handlers[:], ours.handlers[:], ours.propagate, ours.level = kept


async def test_a_stop_closes_what_was_in_flight_at_a_reload_too(gateways: Gateways, same_logging: None) -> None:
    """Its connection has gone back to the old pool, which was once never closed."""
    async with rig_with(gateways, upstream={"idle_timeout": "60s"}) as rig:
        one, peer = await rig.begin(request())
        app = rig.app
        other = settings(rig.gateway.port, rig.gateway.admin, 1)
        app.reload(lambda _: gateway_config.parse(json.dumps(other), "test.yaml"))
        await peer.send(response())
        assert (await one.response()).status == 200
        await app.stop()
        assert await peer.ends() == "fin"


@pytest.mark.parametrize(
    "rest",
    [LAST_CHUNK, chunk(event(notification("notifications/message"))) + LAST_CHUNK, b"1\r\n", b"no chunk\r\n", b""],
    ids=["the end", "an event and the end", "half a chunk", "no chunk", "nothing"],
)
@pytest.mark.parametrize("client_stays", [True, False])
async def test_a_stop_closes_a_connection_that_is_in_use_until_after_it(
    gateways: Gateways, rest: bytes, client_stays: bool
) -> None:
    """A stream is read on behind the response in it. Its connection went back to a pool that nobody closed any more."""
    async with rig_with(gateways) as rig:
        one, peer = await rig.begin(post(filtered()))
        sent = body(rig.upstream.requests[0])
        await peer.send(stream() + chunk(event(result(sent["id"], page(TASKS)))))
        assert ids(final(await one.response())) == ["t-1"]
        if not client_stays:
            await one.close()
        await rig.app.stop()
        await peer.send(rest)
        if rest.endswith(LAST_CHUNK):
            assert await peer.ends() == "fin"
        else:
            peer.finish()
            await peer.ends()


async def test_a_reload_frees_the_old_indexes_bit_by_bit(gateways: Gateways, same_logging: None) -> None:
    """A million tasks freed at once would hold the loop. Here are 20,000, of some six memory blocks each."""
    tasks = [task(f"t-{number}") for number in range(20_000)]
    pages = {str(at) if at else None: page(tasks[at : at + 4000], str(at + 4000)) for at in range(0, 20_000, 4000)}
    pages["16000"] = page(tasks[16_000:])
    async with rig_with(gateways, Server(pages)) as rig:
        assert final(await rig.ask(rig.post(filtered())))["result"]["_meta"]["taskgate/total"] == 20_000
        app = rig.app
        other = settings(rig.gateway.port, rig.gateway.admin, 1)
        before = sys.getallocatedblocks()
        app.reload(lambda _: gateway_config.parse(json.dumps(other), "test.yaml"))
        assert sys.getallocatedblocks() > before - 60_000
        await eventually(lambda: sys.getallocatedblocks() < before - 60_000, "the old index freed")
