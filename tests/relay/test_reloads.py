"""What outlives a reload that leaves an upstream as it is: what the gateway knows of it, and counts there (DESIGN 8.6).

In: a gateway that takes over a configuration which differs in something else. Out: the same as without the reload.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.launch import Gateways, port_of, settings
from tests.relay.messages import call, filtered, post, request, response
from tests.relay.rig import Rig, rig_with

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
    gateway.reload(settings(gateway.port, gateway.admin, port_of(rig.place.listening), changed))


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


async def test_requests_max_counts_those_from_before_a_reload(gateways: Gateways) -> None:
    """Each reload allowed as many again."""
    async with reloadable(gateways, requests_max=2, connect_timeout="300ms") as rig:
        old = [await rig.client(post(call("ping"))) for _ in range(2)]
        peers = [await rig.upstream.request(number) for number in (1, 2)]
        reload(rig, requests_max=2, connect_timeout="300ms")
        assert (await rig.ask(post(call("ping")))).status == 503
        await peers[0].send(response(b"1"))
        assert (await rig.exchange(post(call("ping")), response(b"2"))).body == b"2"
        await peers[1].send(response(b"1"))
        assert [(await one.response()).body for one in old] == [b"1", b"1"]


@pytest.mark.parametrize(("before", "after", "status"), [(1, 3, 200), (3, 1, 503)])
async def test_a_reload_may_change_requests_max(gateways: Gateways, before: int, after: int, status: int) -> None:
    """More places are there at once; of fewer, those that are taken are used up first."""
    async with reloadable(gateways, requests_max=before, connect_timeout="300ms") as rig:
        old, peer = await rig.begin(post(call("ping")))
        reload(rig, requests_max=after, connect_timeout="300ms")
        one = await rig.client(post(call("ping")))
        if status == 200:
            await (await rig.upstream.request(2)).send(response())
        assert (await one.response()).status == status
        await peer.send(response())
        assert (await old.response()).status == 200


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
        url = f"http://localhost:{port_of(rig.place.listening)}/mcp"
        reload(rig, requests_max=1, connect_timeout="10s", url=url)
        assert (await rig.exchange(post(call("ping")), response(b"new"))).body == b"new"
        await peer.send(response(b"old"))
        assert (await old.response()).body == b"old"
