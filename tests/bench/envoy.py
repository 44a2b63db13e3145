"""The peer in C++: Envoy with one worker, alone or with its own filter for MCP, where there is a wheel."""

import contextlib
import shutil
import sysconfig
from collections.abc import AsyncIterator
from typing import Any, Final

import orjson

from tests.bench.processes import Served, free_address, program

_TYPES: Final = "type.googleapis.com/envoy.extensions"


def executable() -> str | None:
    """Envoy's executable beside this Python, or on the path; None if there is none."""
    return shutil.which("envoy", path=sysconfig.get_path("scripts")) or shutil.which("envoy")


@contextlib.asynccontextmanager
async def serving(core: int | None, upstream: str, reads_mcp: bool) -> AsyncIterator[Served]:
    """Run Envoy in front of `upstream` ("127.0.0.1:3000")."""
    path = executable()
    assert path is not None
    listen = free_address()
    config = orjson.dumps(_config(listen, upstream, reads_mcp)).decode()
    words = ("--config-yaml", config, "--concurrency", "1", "--use-dynamic-base-id", "--log-level", "error")
    async with program(core, "Envoy", listen, path, *words, "--disable-hot-restart") as one:  # JSON is YAML
        yield Served(one.pid, f"{one.url}/mcp")


def _address(address: str) -> dict[str, Any]:
    host, _, port = address.rpartition(":")
    return {"socket_address": {"address": host, "port_value": int(port)}}


def _config(listen: str, upstream: str, reads_mcp: bool) -> dict[str, Any]:
    router = {"name": "router", "typed_config": {"@type": f"{_TYPES}.filters.http.router.v3.Router"}}
    mcp = {
        "name": "mcp",
        "typed_config": {"@type": f"{_TYPES}.filters.http.mcp.v3.Mcp", "traffic_mode": "PASS_THROUGH"},
    }
    manager = {
        "@type": f"{_TYPES}.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "bench",
        "http_filters": [mcp, router] if reads_mcp else [router],
        "route_config": {
            "virtual_hosts": [
                {
                    "name": "all",
                    "domains": ["*"],
                    # Streams stay open: its default is 15 s for a response.
                    "routes": [{"match": {"prefix": "/"}, "route": {"cluster": "bench", "timeout": "0s"}}],
                }
            ]
        },
    }
    listener = {
        "address": _address(listen),
        "filter_chains": [{"filters": [{"name": "http", "typed_config": manager}]}],
    }
    endpoints = [{"lb_endpoints": [{"endpoint": {"address": _address(upstream)}}]}]
    most = dict.fromkeys(("max_connections", "max_pending_requests", "max_requests"), 100_000)  # the default is 1,024
    cluster = {
        "name": "bench",
        "load_assignment": {"cluster_name": "bench", "endpoints": endpoints},
        "circuit_breakers": {"thresholds": [most]},
    }
    return {"static_resources": {"listeners": [listener], "clusters": [cluster]}}
