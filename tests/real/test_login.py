"""Logins through the gateway: the official OAuth clients, and an authorization server that knows its own address only.

A client compares what it is told with the address that it uses (RFC 9728, 3.3; RFC 8414, 3.3), so a login fails if the
gateway passes everything unchanged. Its gateways are one with `public_url: off`, a `bare` one with no configuration at
all, and two with a `public_url`, at the root and under a prefix. Every client and server: test_table_of_clients.py.
"""

import json
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import httpx
import pytest
from mcp.client.auth import OAuthClientProvider, OAuthFlowError
from mcp.shared.auth import OAuthClientMetadata
from pydantic import AnyUrl

from tests.real import conftest
from tests.real.clients.conversation import REDIRECT, Kept, UserAgent
from tests.real.conftest import Client, Exact, Json, Runner, Wire, connected, exact, free_port, ids_of
from tests.real.servers.login import SCOPE, token
from tests.real.servers.logins import ALL

FILTERED: Json = {"status": ["working"]}


@dataclass(frozen=True)
class Places:
    """Where the server is: its own origin, and those of its gateways."""

    own: str
    off: str
    bare: str
    root: str
    research: str


@pytest.fixture(scope="module")
def places(runner: Runner) -> Iterator[Places]:
    first = free_port(2)
    with (
        runner.server("logins", port=free_port(len(ALL))) as server,
        runner.gateway(server, public_url="off") as off,
        runner.gateway(server) as bare,
        runner.gateway(server, port=first, public_url=f"http://127.0.0.1:{first}") as root,
        runner.gateway(
            server, port=first + 1, public_url=f"http://127.0.0.1:{first + 1}/research", match={"prefix": "/research"}
        ) as research,
    ):
        yield Places(server.wait(), off.wait(), bare.wait(), root.wait(), f"{research.wait()}/research")


class Login:
    """The Python SDK's OAuth client at one address; its user agent goes where it is sent. Notes all that is asked."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._agent = UserAgent(httpx, verify=False)
        self.asked = self._agent.asked
        self.kept = Kept()
        metadata = OAuthClientMetadata(redirect_uris=[AnyUrl(REDIRECT)], client_name="taskgate-tests")
        self.provider = OAuthClientProvider(url, metadata, self.kept, self._agent.redirect, self._agent.callback)

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[Client]:
        http = conftest.bare_http()
        http.auth = self.provider
        http.event_hooks = self._agent.hooks
        async with connected(self._url, http=http) as client:
            yield client


def asked_in_login(origin: str, prefix: str = "", path: str = "/mcp", quiet: bool = False) -> list[str]:
    """What a client asks until it has a token, where the resource and its authorization server are at this address."""
    at_root = f"{origin}/.well-known/oauth-protected-resource{prefix}{path}"
    return [
        f"POST {origin}{prefix}{path}",
        f"GET {at_root if quiet else f'{origin}{prefix}/.well-known/oauth-protected-resource{path}'}",
        f"GET {origin}/.well-known/oauth-authorization-server{prefix}",
        f"POST {origin}{prefix}/register",
        f"GET {origin}{prefix}/authorize",
        f"POST {origin}{prefix}/token",
    ]


def moved(answer: Exact, own: str, public: str) -> Exact:
    """A direct answer with the server's address moved, in its body and its challenges."""
    was, now = own.encode(), public.encode()
    body = answer.body.replace(was, now)
    fields = []
    for name, value in answer.headers:
        if name.lower() == b"content-length":
            value = str(len(body)).encode()
        fields.append((name, value.replace(was, now) if name.lower() == b"www-authenticate" else value))
    return Exact(answer.status, answer.reason, fields, body)


# Logins


@pytest.mark.parametrize(
    ("place", "path"), [("root", "/mcp"), ("research", "/mcp"), ("research", "/quiet/mcp"), ("bare", "/quiet/mcp")]
)
async def test_the_python_client_logs_in_and_filters_tasks_and_asks_nobody_else(
    places: Places, place: str, path: str
) -> None:
    """The challenges of /quiet/mcp do not say where the metadata is."""
    public: str = getattr(places, place)
    login, prefix = Login(f"{public}{path}"), "/research" if place == "research" else ""
    async with login.connected() as client:
        assert client.listing == {"filter": conftest.FILTER_CAPABILITY}
        made = await client.work("released", words := f"see {places.own}/mcp")
        for criteria in ({}, FILTERED):
            [task] = await client.tasks(criteria)
            assert (task["taskId"], task["statusMessage"]) == (made, words), "an address in a message stays"
        assert ids_of(await client.tasks({"status": ["completed"]})) == []
    origin = public.removesuffix(prefix)
    assert login.asked[:6] == asked_in_login(origin, prefix, path, quiet=path != "/mcp")
    assert all(origin in address for address in login.asked)


async def test_the_python_client_refreshes_its_token_through_the_gateway(places: Places) -> None:
    login = Login(f"{places.research}/mcp")
    async with login.connected() as client:
        made = await client.work("released", "before the refresh")
        before = login.kept.tokens
        assert before is not None
        login.provider.context.token_expiry_time = time.time() - 1
        login.asked.clear()
        tasks = await client.tasks(FILTERED)
        assert login.kept.tokens not in (None, before)
        assert login.asked == [f"POST {places.research}/token", f"POST {places.research}/mcp"]
        assert ids_of(tasks) == [made]


async def test_where_addresses_stay_a_client_that_checks_the_resource_refuses(places: Places) -> None:
    login = Login(f"{places.off}/mcp")
    with pytest.raises(OAuthFlowError, match=f"{places.own}/mcp does not match expected {places.off}/mcp"):
        async with login.connected():
            pass


# Challenges


def unframed(answer: Exact) -> list[tuple[bytes, bytes]]:
    """The fields but Content-Length: whoever puts the client's id into a body writes it anew."""
    return [(name, value) for name, value in answer.headers if name.lower() != b"content-length"]


@pytest.mark.parametrize("place", ["off", "bare", "research"])
async def test_a_filtered_list_without_a_good_token_gets_the_servers_own_challenge(
    places: Places, http: httpx.AsyncClient, place: str
) -> None:
    now, public = int(time.time()), str(getattr(places, place))
    good = token("anna", [SCOPE], now + 60)
    opened, _ = await Wire(f"{public}/mcp", http).at(authorization=f"Bearer {good}").initialize()
    await opened.work("released", "task")
    body = json.dumps({"jsonrpc": "2.0", "id": "its id", "method": "tasks/list", "params": FILTERED}).encode()
    expired, of_little_scope = token("anna", [SCOPE], now - 60), token("anna", [], now + 60)
    for bearer, status in (("not a token", 401), (expired, 401), (of_little_scope, 403)):
        assert len(await opened.tasks(FILTERED)) == 1
        headers = {**opened.headers, "authorization": f"Bearer {bearer}"}
        direct, through = [await exact(http, f"{at}/mcp", body, headers) for at in (places.own, public)]
        expected = direct if place == "off" else moved(direct, places.own, public)
        assert (through.status, through.reason, through.body) == (status, direct.reason, direct.body)
        assert unframed(through) == unframed(expected)
        assert through.values("www-authenticate") == expected.values("www-authenticate") != []
