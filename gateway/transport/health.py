"""Probes of an upstream: again and again while it is down, and at each interval of its health check.

In: a pool of connections. Out: what each probe shows, told to the state of the upstream (state.py). Always: one probe
at a time, with a time limit. What is up, or was never asked, is probed only if a health check is configured.

A health check is a GET of its page; a status below 500 passes. Without one a probe connects, and sends nothing. Only to
a server that is down because an answer was missing it sends an `OPTIONS`, which changes nothing and opens nothing
(RFC 9110, 9.3.7): a connection does not show that such a server answers again.
"""

import asyncio
from contextlib import suppress
from itertools import chain, repeat
from random import uniform
from typing import Final

from gateway.config import HealthCheck
from gateway.errors import GatewayError, UpstreamTimeout
from gateway.transport.pool import Pool
from gateway.transport.state import UpstreamState

_FIRST_PROBE_S: Final = 1.0  # after it went down
_NEXT_PROBE_S: Final = 10.0  # after each probe that finds it down
_SPREAD: Final = 1.25  # so much longer at most: what went down together is not probed together
_PROBE_S: Final = 5.0  # for an answer to `OPTIONS`


async def watch(pool: Pool) -> None:
    """Probe for ever."""
    check, state = pool.config.health_check, pool.state
    interval_s = None if check is None else check.interval
    while True:
        if check is not None:
            await _probe(pool, check)
        for pause_s in chain((_FIRST_PROBE_S,), repeat(_NEXT_PROBE_S)):
            if not state.is_down:
                break
            await asyncio.sleep(min(pause_s * uniform(1.0, _SPREAD), interval_s or _NEXT_PROBE_S * _SPREAD))
            if state.is_down:
                await _probe(pool, check)
        with suppress(TimeoutError):
            async with asyncio.timeout(interval_s):
                await state.went_down.wait()


async def _probe(pool: Pool, check: HealthCheck | None) -> None:
    """Probe once. What the connection or the exchange shows, the pool tells the state; a check adds what it found."""
    if pool.is_full:  # no place for a probe: requests under way will tell
        return
    with suppress(GatewayError):
        if check is not None:
            status = await _exchange(pool, b"GET", check.path, check.timeout, is_check=True)
            if status >= 500:
                pool.state.failed(f"the health check got status {status}")
            else:
                pool.state.passed()
        elif pool.state.now is UpstreamState.UNREACHABLE:
            (await pool.connection(fresh=True)).close()
            pool.state.connected()
        else:
            await _exchange(pool, b"OPTIONS", pool.config.url.path, _PROBE_S, is_check=False)


async def _exchange(pool: Pool, method: bytes, target: str, timeout_s: float, is_check: bool) -> int:
    """The status of the answer to a request without a body, once it is whole. Raises GatewayError."""
    config = pool.config
    host = config.url.authority if config.host in ("upstream", "preserve") else config.host
    head = b"%b %b HTTP/1.1\r\nHost: %b\r\nAccept: */*\r\nUser-Agent: taskgate\r\n\r\n"
    try:
        async with asyncio.timeout(timeout_s), pool.call(method, is_check=is_check) as call:
            response = await call.send_all(head % (method, target.encode(), host.encode()), b"", None, again=True)
            while await response.body.read():
                pass
            return response.status
    except TimeoutError:
        why = f"no whole answer to {method.decode()} {target} within {timeout_s:g} s"
        pool.state.silent(why)
        raise UpstreamTimeout(why) from None
