"""500 open streams through the gateway: every event arrives, once, in order and on its own stream.

In: an upstream that writes an event every 200 ms on each, spread over that time, for ten seconds. Out: each event, or
the name of the first that is missing. Always: upstream, gateway and client are processes of their own. How long an
event takes is no test but a figure: `make bench ARGS=streams`, with an event a second for a minute.
"""

import asyncio
from collections.abc import Callable
from typing import Final
from urllib.parse import urlsplit

import pytest

from tests.bench.processes import BenchFailed, child, gateway
from tests.relay.test_harness import Faults, byte_proxy

STREAMS: Final = 500
EVENTS: Final = 50
PERIOD_MS: Final = 200
COPYING_S: Final = 5.0
_EVENT: Final = b'"progressToken":3,"progress":5,'
FAULTS: Final[dict[str, Callable[[bytes], bytes]]] = {
    "lost": lambda data: b"" if _EVENT in data else data,
    "twice": lambda data: data * 2 if _EVENT in data else data,
    "out of order": lambda data: data.replace(_EVENT, _EVENT.replace(b"5", b"6")),
    "on another stream": lambda data: data.replace(_EVENT, _EVENT.replace(b"3", b"4")),
    "cut": lambda data: data[:-30] if _EVENT in data else data,
}


async def test_every_event_of_500_streams_arrives_once_and_in_order() -> None:
    async with child(None, "upstream") as upstream, gateway(None, upstream.url) as proxy, child(None, "load") as load:
        came = await load.ask("listen", url=proxy.url, count=STREAMS, events=EVENTS, period_ms=PERIOD_MS)
        assert came["events"] == STREAMS * EVENTS


@pytest.mark.parametrize("fault", FAULTS)
async def test_an_event_that_is_wilfully_wrong_is_found(fault: str) -> None:
    async with (
        child(None, "upstream") as upstream,
        byte_proxy(urlsplit(upstream.url).port or 0, Faults(down=FAULTS[fault])) as port,
    ):
        async with child(None, "load") as load:
            with pytest.raises(BenchFailed, match=r"stream 3 |HttpParser"):
                await load.ask("listen", url=f"http://127.0.0.1:{port}/mcp", count=6, events=10, period_ms=20)
        # The proxy's connections end now that the client has left; none may be there when the loop is closed.
        if copying := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.wait(copying, timeout=COPYING_S)
