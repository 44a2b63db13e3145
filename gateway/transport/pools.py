"""The pools of all upstreams: made anew by each configuration, and kept until their requests have ended.

In: configurations, one after the other. Out: the pool of each upstream, its probes, and gauges. Always: requests go on
through a reload. What is known of an upstream outlives it, unless the upstream is another, or has another caller's key.
"""

import asyncio
from collections.abc import Callable
from time import time
from typing import TypeAlias

from gateway.config import Config
from gateway.transport import health
from gateway.transport.buffers import Buffers
from gateway.transport.cors import Cors
from gateway.transport.pool import Pool
from gateway.transport.remembered import Heads
from gateway.transport.response import ResponseHead
from gateway.transport.state import UpstreamHealth
from gateway.transport.wire import Links

OnAnswer: TypeAlias = Callable[[str], Callable[[float], None]]
"""By the name of an upstream what takes the seconds until each of its answers began."""


class Pools:
    """The pools of the upstreams, by name, and those before a reload, as long as requests go on there."""

    def __init__(self, buffers: Buffers, links: Links, on_answer: OnAnswer) -> None:
        self.of: dict[str, Pool] = {}
        self.probes: list[asyncio.Task[None]] = []
        self.heads: Heads[ResponseHead] = Heads()  # of responses that came before
        self._retired: list[Pool] = []
        self._shared = buffers, links
        self._on_answer = on_answer

    def serve(self, before: Config, config: Config) -> None:
        """Take over a configuration, in place of the one before."""
        for pool in self.of.values():
            pool.close()
        changed = config.changed_from(before, "url", "socket")
        kept = {name: pool.standing for name, pool in self.of.items() if name not in changed}
        for name in kept.keys() & config.changed_from(before, "identity_headers"):
            kept[name].cors = Cors()  # it says who got what
        for name in kept.keys() & config.changed_from(before, "tls", "health_check"):
            kept[name].state = UpstreamHealth(name, time)
        self._retired += self.of.values()
        self.heads.end()
        self.heads = Heads()
        self.of = {
            u.name: Pool(u, config.limits, *self._shared, self._on_answer(u.name), kept.get(u.name), self.heads)
            for u in config.upstreams
        }

    def probe(self) -> None:
        """Begin the probes of the upstreams of this configuration, in place of those before."""
        self._end_probes()
        self.probes = [asyncio.create_task(health.watch(pool)) for pool in self.of.values()]

    def _end_probes(self) -> None:
        for task in self.probes:
            task.cancel()

    def sweep(self, now: float) -> None:
        """Let go of what has come to its end by the time `now` of the event loop."""
        self.heads.sweep(now)
        self._retired = [pool for pool in self._retired if not pool.is_empty]
        for pool in (*self.of.values(), *self._retired):
            pool.sweep(now)

    def stop(self) -> None:
        """Stop all, for good."""
        self._end_probes()
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
