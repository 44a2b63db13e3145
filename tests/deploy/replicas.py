"""A replica: a gateway in a process of its own, which can be ended and started again at its ports."""

from contextlib import ExitStack
from typing import Any

from tests.launch import Gateway, Gateways, settings


class Replica:
    """One place behind a balancer. Each gateway that runs there has a configuration of its own."""

    def __init__(self, gateways: Gateways, upstream: int, listen: int, admin: int) -> None:
        self.ports = listen, admin
        self._gateways = gateways
        self._upstream = upstream
        self._running = ExitStack()

    def start(self, **changed: Any) -> None:
        """Run a gateway, which may not be ready yet."""
        self.changed = changed
        self.gateway: Gateway = self._running.enter_context(self._gateways.starting(self.settings(**changed)))

    def settings(self, **changed: Any) -> dict[str, Any]:
        """A configuration for this place."""
        return settings(*self.ports, self._upstream, changed)

    def close(self) -> None:
        """End the gateway, if it runs, and check how it ended."""
        self._running.close()
