"""The peer in C++: Envoy with one worker, alone or with its own filter for MCP, where there is a wheel."""

import contextlib
import shutil
import sysconfig
from collections.abc import AsyncIterator
from typing import Final

from tests.bench.processes import Served, free_address, program

# A response may take any time, as streams stay open; as many connections as there are, where 1,024 is the default.
_CONFIG: Final = """\
static_resources:
  listeners:
  - address: {{socket_address: {{address: 127.0.0.1, port_value: {listen}}}}}
    filter_chains:
    - filters:
      - name: http
        typed_config:
          "@type": {type}.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: bench
          http_filters: [{mcp}{{name: router, typed_config: {{"@type": {type}.filters.http.router.v3.Router}}}}]
          route_config:
            virtual_hosts:
            - {{name: all, domains: ["*"], routes: [{{match: {{prefix: /}}, route: {{cluster: bench, timeout: 0s}}}}]}}
  clusters:
  - name: bench
    load_assignment:
      cluster_name: bench
      endpoints:
      - lb_endpoints: [{{endpoint: {{address: {{socket_address: {{address: 127.0.0.1, port_value: {upstream}}}}}}}}}]
    circuit_breakers:
      thresholds: [{{max_connections: 100000, max_pending_requests: 100000, max_requests: 100000}}]
"""
_TYPE: Final = "type.googleapis.com/envoy.extensions"
_MCP: Final = f'{{name: mcp, typed_config: {{"@type": {_TYPE}.filters.http.mcp.v3.Mcp, traffic_mode: PASS_THROUGH}}}}, '


def executable() -> str | None:
    """Envoy's executable beside this Python, or on the path; None if there is none."""
    return shutil.which("envoy", path=sysconfig.get_path("scripts")) or shutil.which("envoy")


@contextlib.asynccontextmanager
async def serving(core: int | None, upstream: str, reads_mcp: bool) -> AsyncIterator[Served]:
    """Run Envoy in front of `upstream` ("127.0.0.1:3000")."""
    path = executable()
    assert path is not None
    listen = free_address()
    ports = {"listen": listen.rpartition(":")[2], "upstream": upstream.rpartition(":")[2]}
    config = _CONFIG.format(type=_TYPE, mcp=_MCP if reads_mcp else "", **ports)
    words = ("--config-yaml", config, "--concurrency", "1", "--use-dynamic-base-id", "--log-level", "error")
    async with program(core, "Envoy", listen, path, *words, "--disable-hot-restart") as one:
        yield Served(one.pid, f"{one.url}/mcp")
