"""The peers of section `peers` as programs: how each is started in front of a server, as its own documents say.

nginx and HAProxy are those of the path; the MCP gateways stand in an environment of their own (peers.txt).
"""

import asyncio
import os
import secrets
import shutil
import sys
import tempfile
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Final, TypeAlias
from urllib.parse import urlsplit

from aiohttp import ClientSession

from tests.bench import proc
from tests.bench.processes import BenchFailed, Served, free_address, program
from tests.launch import ROOT

NGINX: Final = "nginx"
HAPROXY: Final = "HAProxy"
FASTMCP: Final = "FastMCP's proxy"
MCP_PROXY: Final = "mcp-proxy"
CONTEXT_FORGE: Final = "ContextForge"

Serving: TypeAlias = Callable[[int | None, str], AbstractAsyncContextManager[Served]]

_ENVIRONMENT: Final = ROOT / ".venv-peers/bin"
_EXECUTABLES: Final = {FASTMCP: "fastmcp", MCP_PROXY: "mcp-proxy", CONTEXT_FORGE: "mcpgateway"}
_SYSTEM_FOLDERS: Final = "/usr/sbin:/usr/local/sbin"  # not on the path of every user
_SERVER: Final = (sys.executable, "-W", "ignore", "-m", "tests.real.servers.python_sdk")
_ADMIN: Final = "admin@example.com"
_UPSTREAM: Final = "bench"  # the name by which ContextForge knows the server; its tools' names begin with it
TOOL_PREFIXES: Final = {CONTEXT_FORGE: f"{_UPSTREAM}-"}

_NGINX: Final = """\
daemon off;
master_process off;
pid {folder}/nginx.pid;
error_log stderr error;
events {{ worker_connections 1024; }}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    keepalive_requests 1000000000;
    upstream server {{ server {upstream}; keepalive 64; keepalive_requests 1000000000; }}
    server {{
        listen {listen};
        location / {{
            proxy_pass http://server;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_set_header Host $http_host;
            proxy_buffering off;
            proxy_read_timeout 1h;
        }}
    }}
}}
"""
_HAPROXY: Final = """\
global
    nbthread 1
    maxconn 2000
defaults
    mode http
    timeout connect 5s
    timeout client 1h
    timeout server 1h
    http-reuse always
frontend clients
    bind {listen}
    default_backend servers
backend servers
    server one {upstream}
"""


def executable(name: str) -> str | None:
    if name in _EXECUTABLES:
        return shutil.which(_EXECUTABLES[name], path=str(_ENVIRONMENT))
    return shutil.which(name.lower(), path=f"{os.environ.get('PATH', os.defpath)}:{_SYSTEM_FOLDERS}")


def _path(name: str) -> str:
    found = executable(name)
    assert found is not None, name
    return found


@asynccontextmanager
async def server() -> AsyncIterator[Served]:
    """The Python SDK's server with tasks, which answers with JSON. It logs an error for each session that is ended."""
    address = free_address()
    line = (*_SERVER, "--json", "--port", address.rpartition(":")[2])
    async with program(proc.cores().others, "the server", address, *line, errors=DEVNULL) as one:
        yield Served(one.pid, f"{one.url}/mcp")


def _carrier(name: str, config: str, *words: str) -> Serving:
    """A proxy of bytes that reads its configuration from a file."""

    @asynccontextmanager
    async def serving(core: int | None, url: str) -> AsyncIterator[Served]:
        listen, parts = free_address(), urlsplit(url)
        with tempfile.TemporaryDirectory(prefix="taskgate-bench-") as folder:
            file = Path(folder) / "config"
            file.write_text(config.format(folder=folder, listen=listen, upstream=parts.netloc))
            async with program(core, name, listen, _path(name), *words, str(file)) as one:
                yield Served(one.pid, f"{one.url}{parts.path}")

    return serving


def _gateway(name: str, words: Callable[[str], Iterable[str]]) -> Serving:
    """A gateway that is told all by its arguments: where it listens, and `words`, which may name the server."""

    @asynccontextmanager
    async def serving(core: int | None, url: str) -> AsyncIterator[Served]:
        host, _, port = (listen := free_address()).rpartition(":")
        given = [text.format(host=host, port=port) for text in words(url)]
        async with program(core, name, listen, _path(name), *given) as one:
            yield Served(one.pid, f"{one.url}/mcp")

    return serving


@asynccontextmanager
async def _context_forge(core: int | None, url: str) -> AsyncIterator[Served]:
    """ContextForge with a database of its own. Its clients have no token and no limit; its admin API needs a token."""
    host, _, port = (listen := free_address()).rpartition(":")
    with tempfile.TemporaryDirectory(prefix="taskgate-bench-") as folder:
        given = {
            "HOME": folder,
            "DATABASE_URL": f"sqlite:///{folder}/gateway.db",
            "CACHE_TYPE": "memory",
            "JWT_SECRET_KEY": secrets.token_urlsafe(40),
            "AUTH_ENCRYPTION_SECRET": secrets.token_urlsafe(40),
            "PLATFORM_ADMIN_EMAIL": _ADMIN,
            "PLATFORM_ADMIN_PASSWORD": f"{secrets.token_urlsafe(20)}aA1!",
            "MCP_REQUIRE_AUTH": "false",
            "SSRF_ALLOW_LOCALHOST": "true",
            "RATE_LIMITING_ENABLED": "false",  # by default it refuses more than 100 calls a minute
            "LOG_LEVEL": "CRITICAL",
            "PYTHONWARNINGS": "ignore",
        }
        environment = ("env", "-C", folder, *(f"{name}={value}" for name, value in given.items()))
        words = ("mcpgateway.main:app", "--host", host, "--port", port, "--log-level", "critical", "--no-access-log")
        async with program(core, CONTEXT_FORGE, listen, *environment, _path(CONTEXT_FORGE), *words) as one:
            await _register(one.url, url, await _admin_token(*environment))
            yield Served(one.pid, f"{one.url}/mcp")


async def _admin_token(*environment: str) -> str:
    """A token for ContextForge's admin API, made by its own tool. Raises BenchFailed."""
    line = ("-m", "mcpgateway.utils.create_jwt_token", "--username", _ADMIN, "--exp", "60")
    python = str(_ENVIRONMENT / "python")
    made = await asyncio.create_subprocess_exec(*environment, python, *line, stdout=PIPE, stderr=PIPE)
    said, errors = await made.communicate()
    if made.returncode:
        raise BenchFailed(f"{CONTEXT_FORGE} makes no token: {errors.decode(errors='replace')}")
    return said.decode().split()[-1]


async def _register(gateway: str, url: str, token: str) -> None:
    """Let ContextForge know the server, for all of its clients. Raises BenchFailed."""
    wanted = {"name": _UPSTREAM, "url": url, "transport": "STREAMABLEHTTP", "visibility": "public"}
    fields = {"Authorization": f"Bearer {token}"}
    async with ClientSession() as client, client.post(f"{gateway}/gateways", json=wanted, headers=fields) as answer:
        if not answer.ok:
            raise BenchFailed(f"{CONTEXT_FORGE} does not take the server: {answer.status} {await answer.text()}")


CARRIERS: Final[dict[str, Serving]] = {
    NGINX: _carrier(NGINX, _NGINX, "-e", "stderr", "-c"),
    HAPROXY: _carrier(HAPROXY, _HAPROXY, "-db", "-f"),
}
_LISTEN: Final = ("--host", "{host}", "--port", "{port}", "--log-level", "CRITICAL")
GATEWAYS: Final[dict[str, Serving]] = {
    FASTMCP: _gateway(FASTMCP, lambda url: ("run", url, "--transport", "http", *_LISTEN, "--no-banner")),
    MCP_PROXY: _gateway(MCP_PROXY, lambda _: (*_LISTEN, "--", *_SERVER, "--stdio")),
    CONTEXT_FORGE: _context_forge,
}
