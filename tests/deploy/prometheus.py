"""A real Prometheus that reads gateways every 500 ms, and the rules of deploy/ with shorter ranges and `for`."""

import asyncio
import json
import math
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import aiohttp

from tests.deploy import DEPLOY
from tests.launch import held_port, is_ready, port_of, started
from tests.tools import tool

RANGE: Final = "5s"
_POLL_S: Final = 0.2


def shortened(rules: str) -> str:
    """The rules, with a range of 5 s and `for` of 1 s everywhere."""
    return re.sub(r"(?m)^( *for): .*$", r"\1: 1s", re.sub(r"\[\d+m\]", f"[{RANGE}]", rules))


class Prometheus:
    def __init__(self, http: aiohttp.ClientSession, origin: str) -> None:
        self._http = http
        self._origin = origin

    async def values(self, expression: str) -> list[float]:
        """The values that an expression has now, without those that are no number."""
        found = await self._get("query", query=expression)
        values = [float(sample["value"][1]) for sample in found["result"]]
        return [value for value in values if math.isfinite(value)]

    async def alerts(self) -> dict[str, set[str]]:
        """The alerts that are pending or firing: their states by name."""
        states: dict[str, set[str]] = {}
        for alert in (await self._get("alerts"))["alerts"]:
            states.setdefault(alert["labels"]["alertname"], set()).add(alert["state"])
        return states

    async def _get(self, path: str, **query: str) -> Any:
        async with self._http.get(f"{self._origin}/api/v1/{path}", params=query) as response:
            answer = await response.json()
        assert answer["status"] == "success", answer
        return answer["data"]


@asynccontextmanager
async def running(directory: Path, targets: list[str]) -> AsyncIterator[Prometheus]:
    with held_port() as sock:
        port = port_of(sock)
        command = [
            tool("prometheus", "prometheus"),
            f"--config.file={_configured(directory, targets)}",
            f"--storage.tsdb.path={directory / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
        ]
        log, origin = directory / "prometheus.log", f"http://127.0.0.1:{port}"
        with started("Prometheus", command, log, origin, lambda: is_ready(port, "/-/ready")) as process:
            await asyncio.to_thread(process.wait)
            async with aiohttp.ClientSession() as http:
                yield Prometheus(http, origin)


def _configured(directory: Path, targets: list[str]) -> Path:
    rules = directory / "rules.yaml"
    rules.write_text(shortened((DEPLOY / "prometheus-rules.yaml").read_text()))
    every = {"scrape_interval": "500ms", "scrape_timeout": "500ms", "evaluation_interval": "500ms"}
    job = {"job_name": "taskgate", "static_configs": [{"targets": targets}]}
    file = directory / "prometheus.yaml"
    file.write_text(json.dumps({"global": every, "rule_files": [str(rules)], "scrape_configs": [job]}))
    return file


async def eventually(holds: Callable[[], Awaitable[bool]], what: str | Callable[[], str], within_s: float) -> None:
    """Return once something holds; fail with `what` if it does not in time."""
    for _ in range(round(within_s / _POLL_S)):
        if await holds():
            return
        await asyncio.sleep(_POLL_S)
    raise AssertionError(f"not within {within_s:g} s: {what if isinstance(what, str) else what()}")
