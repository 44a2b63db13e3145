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
from urllib.parse import urlencode

import httpx
import pytest
from mcp.client.auth import OAuthClientProvider, OAuthFlowError
from mcp.shared.auth import OAuthClientMetadata
from pydantic import AnyUrl

from tests.launch import Process
from tests.real.clients.conversation import Kept, UserAgent
from tests.real.conftest import (
    FILTER_CAPABILITY,
    Client,
    Exact,
    Json,
    Runner,
    Wire,
    bare_http,
    connected,
    exact,
    ids_of,
)
from tests.real.servers.login import SCOPE, token

CALLBACK = "http://127.0.0.1:1/callback"
DOCUMENTS = {
    "/.well-known/oauth-protected-resource/mcp": "resource",
    "/.well-known/oauth-protected-resource/quiet/mcp": "resource",
    "/.well-known/oauth-authorization-server": "issuer",
}
FILTERED: Json = {"status": ["working"]}
MOVED = ("bare", "root", "research")
PLACES = ("off", *MOVED)


@dataclass(frozen=True)
class Places:
    """Where the server is: its own origin, and those of its gateways."""

    own: str
    off: str
    bare: str
    root: str
    research: str
    server: Process

    def public(self, name: str) -> str:
        address: str = getattr(self, name)
        return address


@pytest.fixture(scope="module")
def places(runner: Runner) -> Iterator[Places]:
    with (
        runner.server("login") as server,
        runner.gateway(server, public_url="off") as off,
        runner.gateway(server) as bare,
        runner.gateway(server, public_path="") as root,
        runner.gateway(server, public_path="/research") as research,
    ):
        yield Places(server.wait(), off.wait(), bare.wait(), root.wait(), f"{research.wait()}/research", server)


class Login:
    """The Python SDK's OAuth client at one address; its user agent goes where it is sent. Notes all that is asked."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._agent = UserAgent(httpx, verify=False)
        self.asked = self._agent.asked
        self.kept = Kept()
        metadata = OAuthClientMetadata(redirect_uris=[AnyUrl(CALLBACK)], client_name="taskgate-tests")
        self.provider = OAuthClientProvider(url, metadata, self.kept, self._agent.redirect, self._agent.callback)

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[Client]:
        http = bare_http()
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


async def at_all(http: httpx.AsyncClient, places: Places, path: str, **said: object) -> dict[str, Exact]:
    """The answer to a GET of this path at each place, by the place's name. The server says what is `said`."""
    target = f"{path}?{urlencode(said, doseq=True)}" if said else path
    return {name: await exact(http, places.public(name) + target) for name in ("own", *PLACES)}


def assert_moves(answers: dict[str, Exact], places: Places) -> None:
    """Where addresses move, the server's own are the gateway's; and nothing else is done."""
    assert answers["off"] == answers["own"]
    for place in MOVED:
        assert answers[place] == moved(answers["own"], places.own, places.public(place))


# Logins


@pytest.mark.parametrize(
    ("place", "path"), [("root", "/mcp"), ("research", "/mcp"), ("research", "/quiet/mcp"), ("bare", "/quiet/mcp")]
)
async def test_the_python_client_logs_in_and_filters_tasks_and_asks_nobody_else(
    places: Places, place: str, path: str
) -> None:
    """The challenges of /quiet/mcp do not say where the metadata is."""
    login, prefix = Login(f"{places.public(place)}{path}"), "/research" if place == "research" else ""
    async with login.connected() as client:
        assert client.listing == {"filter": FILTER_CAPABILITY}
        made = await client.work("released", "after the login")
        assert ids_of(await client.tasks(FILTERED)) == [made]
        assert ids_of(await client.tasks({"status": ["completed"]})) == []
    origin = places.public(place).removesuffix(prefix)
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


# Documents


@pytest.mark.parametrize("path", DOCUMENTS)
async def test_only_the_servers_own_addresses_are_moved_in_a_document(
    places: Places, http: httpx.AsyncClient, path: str
) -> None:
    answers = await at_all(http, places, path)
    assert answers["own"].status == 200
    assert_moves(answers, places)
    for place in MOVED:
        public = places.public(place)
        assert json.loads(answers[place].body)[DOCUMENTS[path]].startswith(public)
        assert places.own.encode() not in answers[place].body


# Redirects


@pytest.mark.parametrize("field", ["location", "content-location"])
async def test_a_redirect_to_the_server_leads_to_the_gateway(
    places: Places, http: httpx.AsyncClient, field: str
) -> None:
    origin = places.research.removesuffix("/research")
    port = places.own.rpartition(":")[2]
    for said, expected in (
        (f"{places.own}/mcp/?a=b#c", "{public}/mcp/?a=b#c"),
        (f"http://localhost:{port}", "{public}"),
        ("/mcp/", "{path}/mcp/"),
        ("mcp/", "mcp/"),
        ("//elsewhere.example/mcp", "//elsewhere.example/mcp"),
    ):
        answers = await at_all(http, places, "/said", **{"status": 201, field: said})
        assert answers["own"].values(field) == [said] == answers["off"].values(field)
        for place in MOVED:
            public = places.public(place)
            path = public.removeprefix(origin) if place == "research" else ""
            assert answers[place].values(field) == [expected.format(public=public, path=path)]


async def test_a_filtered_list_where_the_server_redirects_is_redirected(
    places: Places, http: httpx.AsyncClient
) -> None:
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tasks/list", "params": FILTERED}).encode()
    for place in MOVED:
        answer = await exact(http, f"{places.public(place)}/moved", body, {"Content-Type": "application/json"})
        assert (answer.status, answer.values("location")) == (307, [f"{places.public(place)}/mcp"])


# Messages


async def test_an_address_in_a_message_stays(places: Places, http: httpx.AsyncClient) -> None:
    bearer = token("anna", [SCOPE], int(time.time()) + 60)
    wire, _ = await Wire(f"{places.root}/mcp", http).at(authorization=f"Bearer {bearer}").initialize()
    await wire.work("released", f"see {places.own}/mcp")
    for criteria in ({}, FILTERED):
        [task] = await wire.tasks(criteria)
        assert task["statusMessage"] == f"see {places.own}/mcp"


# Challenges


def unframed(answer: Exact) -> list[tuple[bytes, bytes]]:
    """The fields but Content-Length: whoever puts the client's id into a body writes it anew."""
    return [(name, value) for name, value in answer.headers if name.lower() != b"content-length"]


def refused_tokens() -> dict[str, tuple[int, str | None]]:
    """What a request may bear in vain, and the status that it gets."""
    now = int(time.time())
    return {
        "none": (401, None),
        "unknown": (401, "not a token"),
        "expired": (401, token("anna", [SCOPE], now - 60)),
        "of too little scope": (403, token("anna", [], now + 60)),
    }


@pytest.mark.parametrize("name", refused_tokens())
@pytest.mark.parametrize("place", PLACES)
async def test_a_filtered_list_without_a_good_token_gets_the_servers_own_challenge(
    places: Places, http: httpx.AsyncClient, place: str, name: str
) -> None:
    status, bearer = refused_tokens()[name]
    good = token("anna", [SCOPE], int(time.time()) + 60)
    opened, _ = await Wire(f"{places.public(place)}/mcp", http).at(authorization=f"Bearer {good}").initialize()
    await opened.work("released", "task")
    assert len(await opened.tasks(FILTERED)) == 1

    headers = {key: value for key, value in opened.headers.items() if key != "authorization"}
    if bearer is not None:
        headers["authorization"] = f"Bearer {bearer}"
    body = json.dumps({"jsonrpc": "2.0", "id": "its id", "method": "tasks/list", "params": FILTERED}).encode()
    direct = await exact(http, f"{places.own}/mcp", body, headers)
    through = await exact(http, f"{places.public(place)}/mcp", body, headers)
    expected = direct if place == "off" else moved(direct, places.own, places.public(place))
    assert (through.status, through.reason, through.body) == (status, direct.reason, direct.body)
    assert unframed(through) == unframed(expected)
    assert through.values("www-authenticate") == expected.values("www-authenticate") != []
