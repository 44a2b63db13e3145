"""The pools of all upstreams: made anew by each configuration, and kept until their requests have ended. Their probes.

In: configurations, one after the other. Out: the pool of each upstream, and gauges; what each probe shows, told to the
state of the upstream (health.py). Always: requests go on through a reload. What is known of an upstream outlives it,
unless the upstream is another, or has another caller's key. An upstream has one probe at a time, with a time limit.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import chain, repeat
from random import uniform
from time import time
from typing import Final

from gateway.caller_identity import ServerKey
from gateway.config import Config, ConfigError, HealthCheck, Upstream
from gateway.errors import GatewayError
from gateway.http.cors import Cors
from gateway.http.parsed_head_cache import HeadCache
from gateway.http.response_parser import ResponseHead, may_vary
from gateway.transport.base_connection import Links
from gateway.transport.memory_budget import Buffers
from gateway.transport.repeated_log_lines import LogLimit
from gateway.upstream.caller_identity_drift import IdentityDrift
from gateway.upstream.connection_pool import Call, Pool, UpstreamContext
from gateway.upstream.dial import Dialer
from gateway.upstream.health import UpstreamHealth

_FIRST_PROBE_S: Final = 1.0  # after it went down
_NEXT_PROBE_S: Final = 10.0  # after each probe that finds it down
_SPREAD: Final = 1.25  # so much longer at most: what went down together is not probed together
_PROBE_S: Final = 5.0  # for an answer to `OPTIONS`


def dialers_of(config: Config) -> list[Dialer]:
    """What makes the connections to each upstream. Raises ConfigError."""
    made, loop = list[Dialer](), asyncio.get_running_loop()
    for at, upstream in enumerate(config.upstreams):
        try:
            made.append(Dialer(upstream, loop))
        except OSError as error:
            raise ConfigError(f"upstreams[{at}].tls.{error}") from None
    return made


class Pools:
    """The pools of the upstreams, by name, and those before a reload, as long as requests go on there.

    `on_answer` returns, by the name of an upstream, what takes the seconds until each of its answers began.
    """

    def __init__(
        self, buffers: Buffers, links: Links, on_answer: Callable[[str], Callable[[float], None]], said: LogLimit
    ) -> None:
        self.of: dict[str, Pool] = {}
        self.probes: list[asyncio.Task[None]] = []
        self.heads: HeadCache[ResponseHead] = HeadCache(may_vary)  # of responses that came before
        self._retired: list[Pool] = []
        self._shared = buffers, links
        self._on_answer, self._said = on_answer, said

    def serve(self, before: Config, config: Config, dialers: Sequence[Dialer]) -> None:
        """Take over a configuration, in place of the one before; `dialers` are those of its upstreams."""
        for pool in self.of.values():
            pool.close()
        changed = config.changed_from(before, "url", "socket")
        kept = {name: pool.context for name, pool in self.of.items() if name not in changed}
        for name in kept.keys() & config.changed_from(before, "identity_headers"):
            kept[name].cors, kept[name].drift = Cors(), IdentityDrift()  # they say who asked
        for name in kept.keys() & config.changed_from(before, "tls", "health_check"):
            kept[name].state = UpstreamHealth(name, time, self._said)
        # A server that comes back while something is under way there is the same: its ids may be given again.
        at = {(p.config.name, p.config.url, p.config.socket): p.context.server for p in self._retired if not p.is_empty}
        self._retired += self.of.values()
        self.heads.end()
        self.heads = HeadCache(may_vary)
        self.of = {}
        for u, dialer in zip(config.upstreams, dialers, strict=True):
            context, on_answer = kept.get(u.name) or UpstreamContext(u.name, self._said), self._on_answer(u.name)
            context.server = at.get((u.name, u.url, u.socket), context.server)
            self.of[u.name] = Pool(u, config.limits, *self._shared, on_answer, self.heads, context, dialer)

    def probe(self) -> None:
        """Begin the probes of the upstreams of this configuration, in place of those before."""
        for task in self.probes:
            task.cancel()
        self.probes = [asyncio.create_task(watch(pool)) for pool in self.of.values()]

    @property
    def servers(self) -> dict[ServerKey, Upstream]:
        return {pool.context.server: pool.config for pool in self.of.values()}

    def sweep(self, now: float) -> set[ServerKey]:
        """Let go of what has come to its end by the time `now` of the event loop. Returns the servers that have gone:
        another configuration names others, and nothing is under way there any more.
        """
        self.heads.sweep(now)
        before, self._retired = self._retired, [pool for pool in self._retired if not pool.is_empty]
        pools = (*self.of.values(), *self._retired)
        for pool in pools:
            pool.sweep(now)
        return {pool.context.server for pool in before} - {pool.context.server for pool in pools}

    def stop(self) -> None:
        for task in self.probes:
            task.cancel()
        for pool in (*self.of.values(), *self._retired):
            pool.stop()

    def gauges(self) -> dict[str, tuple[str, dict[str, float]]]:
        """What goes on at each upstream, and its limit: name of the metric to (help, value by upstream)."""
        clients, active = dict.fromkeys(self.of, 0.0), dict.fromkeys(self.of, 0.0)
        for pool in (*self.of.values(), *self._retired):
            if pool.config.name in self.of:
                clients[pool.config.name] += pool.clients
                active[pool.config.name] += len(pool.active)
        return {
            "upstream_up": (
                "1 if the upstream is up, 0 if it is down. One that was never asked has no sample.",
                {name: float(not p.state.is_down) for name, p in self.of.items() if p.state.name != "not asked yet"},
            ),
            "requests_in_flight": ("Requests of clients that have not ended; an open stream is one.", clients),
            "upstream_requests_in_flight": ("Requests to the upstream that have not ended.", active),
            "upstream_requests_max": (
                "Limit of upstream_requests_in_flight.",
                {name: float(p.config.requests_max) for name, p in self.of.items()},
            ),
        }


async def watch(pool: Pool) -> None:
    """Probe for ever: again and again while it is down, and at each interval of its health check.

    What is up, or was never asked, is probed only if a health check is configured. That is a GET of its page; a status
    below 500 passes. Without one a probe is an `OPTIONS`, which changes nothing and opens nothing (RFC 9110, 9.3.7).
    """
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
    if pool.context.slots.is_full:  # no slot for a probe: requests under way will tell
        return
    config, method, target, timeout_s = pool.config, b"OPTIONS", pool.config.url.path, _PROBE_S
    if check is not None:
        method, target, timeout_s = b"GET", check.path, check.timeout
    host = config.url.authority if config.host in ("upstream", "preserve") else config.host
    head = b"%b %b HTTP/1.1\r\nHost: %b\r\nAccept: */*\r\nUser-Agent: taskgate\r\n\r\n"
    try:
        async with asyncio.timeout(timeout_s), Call(pool, method, is_check=check is not None) as call:
            response = await call.send_all(head % (method, target.encode(), host.encode()), b"", None, again=True)
            while await response.body.read():
                pass
    except TimeoutError:
        pool.state.silent(f"no whole answer to {method.decode()} {target} within {timeout_s:g} s")
    except GatewayError:
        pass
    else:
        if check is not None and response.head.status >= 500:
            pool.state.failed(f"the health check got status {response.head.status}")
        elif check is not None:
            pool.state.passed()
