"""Addresses that one can use: what the command prints, what it logs, what a client that is lost is told, and loops."""

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway import config
from gateway.relay import routes
from tests.forked import ran
from tests.launch import Gateway, Gateways, Json, eventually, fetched, held_port, listening, logged, port_of

UPSTREAMS: list[Json] = [
    {"name": "plain", "url": "http://127.0.0.1:3001/mcp"},
    {"name": "research", "url": "http://127.0.0.1:3002/mcp", "match": {"prefix": "/research"}},
    {"name": "named", "url": "https://tools.example/v1/mcp", "match": {"host": "mcp.example"}},
    {"name": "both", "url": "http://127.0.0.1:3003", "match": {"host": "mcp.example", "prefix": "/b"}},
    {
        "name": "public",
        "url": "http://127.0.0.1:3004/mcp",
        "match": {"prefix": "/p"},
        "public_url": "https://x.example/y",
    },
    {"name": "deep", "url": "http://c.example:81/x", "match": {"host": "mcp.example", "prefix": "/c"}},
    {"name": "stays", "url": "http://127.0.0.1:3005/mcp", "match": {"prefix": "/s"}, "public_url": "off"},
]


def checked(folder: Path, **settings: object) -> tuple[int, str]:
    file = folder / "config.yaml"
    file.write_text(json.dumps(settings))
    ended = ran("--check", "--config", str(file))
    return ended.returncode, ended.stdout + ended.stderr


@pytest.mark.parametrize("listen", ["127.0.0.1:8080", "[::1]:8443"])
def test_check_prints_which_address_leads_to_which_upstream(tmp_path: Path, listen: str) -> None:
    status, said = checked(tmp_path, listen=listen, upstreams=UPSTREAMS)
    assert status == 0
    port = listen.rpartition(":")[2]
    assert said.splitlines()[1:] == [
        f"  http://{listen}/mcp leads to http://127.0.0.1:3001/mcp (plain)",
        f"  http://{listen}/research/mcp leads to http://127.0.0.1:3002/mcp (research)",
        f"  http://mcp.example:{port}/v1/mcp leads to https://tools.example/v1/mcp (named)",
        f"  http://mcp.example:{port}/b/ leads to http://127.0.0.1:3003/ (both)",
        "  https://x.example/y/mcp leads to http://127.0.0.1:3004/mcp (public)",
        f"  http://mcp.example:{port}/c/x leads to http://c.example:81/x (deep)",
        f"  http://{listen}/s/mcp leads to http://127.0.0.1:3005/mcp (stays)",
        "  HTTP+SSE, the transport of 2024-11-05, does not work behind a prefix: research, both, public, deep, stays",
    ]


def at(name: str, path: str = "/mcp", public_url: str | None = None, **match: str) -> Json:
    return {"name": name, "url": f"http://127.0.0.1:1{path}", "match": match, "public_url": public_url}


SHADOWED: dict[str, list[Json]] = {
    "a longer prefix": [at("one", prefix="/x"), at("two", prefix="/x/mcp")],
    "in the other order": [at("two", prefix="/x/mcp"), at("one", prefix="/x")],
    "a prefix of what has none": [at("one"), at("two", prefix="/mcp")],
    "a prefix within a path": [at("one", "/x/y/mcp"), at("two", "/", prefix="/x/y")],
    "below one host": [at("one", host="a.example", prefix="/x"), at("two", host="a.example", prefix="/x/mcp")],
    "the host of the listener": [at("one"), at("two", host="127.0.0.1")],
    "a public address": [at("one", public_url="https://a.example"), at("two", host="a.example")],
    "one public address for both": [
        at("two", prefix="/x", public_url="https://a.example"),
        at("one", prefix="/y", public_url="https://a.example"),
    ],
}
APART: dict[str, list[Json]] = {
    "a prefix that only begins the same": [at("one", prefix="/x"), at("two", prefix="/xmcp")],
    "a prefix beside the path": [at("one", prefix="/x"), at("two", prefix="/x/other")],
    "the same paths at two hosts": [at("one", prefix="/x"), at("two", host="a.example", prefix="/x/mcp")],
    "a public address in front of another host": [
        at("one", public_url="https://a.example", host="inside"),
        at("two", host="a.example"),
    ],
    "public addresses that are mapped": [
        at("one", prefix="/x", public_url="https://a.example/one"),
        at("two", prefix="/y", public_url="https://a.example/two"),
    ],
}


@pytest.mark.parametrize("listen", ["127.0.0.1:8080", "unix:/tmp/taskgate.sock"])
@pytest.mark.parametrize("what", [*SHADOWED, *APART])
def test_an_address_that_leads_to_another_upstream_is_a_fault(listen: str, what: str) -> None:
    """It was printed: clients of the one asked the other."""
    settings = config.parse(json.dumps({"listen": listen, "upstreams": (SHADOWED | APART)[what]}), "config.yaml")
    if what in APART or (listen, what) == ("unix:/tmp/taskgate.sock", "the host of the listener"):
        routes.check(settings)
    else:
        with pytest.raises(config.ConfigError, match=r"\A.*the address of one, leads to two \(upstreams\[.*\Z"):
            routes.check(settings)


def test_a_host_that_is_named_unix_is_no_socket(tmp_path: Path) -> None:
    """Its address was asked for as `localhost`, which is another upstream's: a fault where there is none."""
    status, said = checked(tmp_path, listen="unix:8080", upstreams=[at("one"), at("two", host="localhost")])
    assert status == 0, said
    status, said = checked(tmp_path, listen="unix:8080", upstreams=SHADOWED["a longer prefix"])
    assert status == 2 and "the address of one, leads to two (upstreams[" in said and len(said.splitlines()) == 1


async def test_a_reload_does_not_take_an_address_that_leads_elsewhere(gateways: Gateways) -> None:
    with gateways.process(1, upstreams=SHADOWED["a longer prefix"][:1]) as gateway:
        assert gateway.file is not None
        before = json.loads(gateway.file.read_text())
        gateway.renew({**before, "upstreams": SHADOWED["a longer prefix"]})
        line = await logged(gateway, "reload refused, nothing has changed")
        assert "the address of one, leads to two (upstreams[1])" in line["why"]


OWN = [
    *(("127.0.0.1:8080", "http://127.0.0.1:8080/mcp"), ("127.0.0.1:8080", "http://localhost:8080/mcp")),
    *(("localhost:8080", "http://127.0.0.1:8080/mcp"), ("[::1]:8080", "http://[::1]:8080/mcp")),
    *(("0.0.0.0:80", "http://127.0.0.1/mcp"), ("0.0.0.0:8080", "http://127.0.0.9:8080/mcp")),
    *(("[::]:443", "https://localhost/mcp"), ("mcp.example:8080", "http://MCP.example:8080/other")),
]


OTHERS = [
    *(("127.0.0.1:8080", "http://127.0.0.1:8081/mcp"), ("127.0.0.1:8080", "http://[::1]:8080/mcp")),
    ("0.0.0.0:8080", "http://tools.example:8080/mcp"),
]


@pytest.mark.parametrize(("listen", "url"), [*OWN, *OTHERS])
def test_an_upstream_that_is_the_gateways_own_listener_is_an_error(listen: str, url: str) -> None:
    text = json.dumps({"listen": listen, "upstreams": [{"name": "up", "url": url}]})
    if (listen, url) in OTHERS:
        config.parse(text, "config.yaml")
        return
    with pytest.raises(config.ConfigError) as refused:
        config.parse(text, "config.yaml")
    problem = f"expected the address of an MCP server; given {url!r}, where the gateway itself listens"
    assert str(refused.value) == f"config.yaml:1: upstreams[0].url: {problem}"


@pytest.fixture(scope="module")
def nowhere(gateways: Gateways) -> Iterator[Gateway]:
    """A gateway that has something at two prefixes, and something else at one host."""
    with listening() as sock:
        url = f"http://127.0.0.1:{port_of(sock)}/mcp"
        upstreams = [
            {"name": "a", "url": url, "match": {"prefix": "/a"}},
            {"name": "b", "url": url, "match": {"prefix": "/b"}, "public_url": "https://x.example/y"},
            {"name": "c", "url": url, "match": {"host": "localhost", "prefix": "/c"}},
        ]
        with gateways.process(port_of(sock), upstreams=upstreams) as gateway:
            yield gateway


def asked(port: int, host: str) -> tuple[int, str]:
    """Status and message of the error that is the answer to a ping."""
    status, text = fetched(port, "/mcp", {"jsonrpc": "2.0", "id": 1, "method": "ping"}, Host=host)
    return status, json.loads(text)["error"]["message"]


@pytest.mark.parametrize(("host", "more"), [("127.0.0.1", []), ("localhost", ["c"])])
def test_a_path_that_leads_nowhere_gets_a_404_that_names_the_addresses_of_its_host(
    nowhere: Gateway, host: str, more: list[str]
) -> None:
    authority = f"{host}:{nowhere.port}"
    status, said = asked(nowhere.port, authority)
    assert status == 404
    # The more a match says, the earlier it is tried.
    expected = [
        *(f"http://{authority}/{name}/mcp" for name in more),
        f"http://{authority}/a/mcp",
        "https://x.example/y/mcp",
    ]
    message = "Not Found: no upstream is configured for this host and path; at this host there are "
    assert said == message + ", ".join(expected)


def test_a_404_names_no_addresses_of_another_host(gateways: Gateways) -> None:
    with gateways.process(1, upstream={"match": {"host": "localhost", "prefix": "/secret"}}) as gateway:
        told = asked(gateway.port, f"127.0.0.1:{gateway.port}")
    assert told == (404, "Not Found: no upstream is configured for this host and path")


async def test_the_log_names_the_addresses_that_clients_use_with_the_port_really_taken(gateways: Gateways) -> None:
    upstreams = [{"name": "a", "match": {"prefix": "/a"}}, {"name": "b", "match": {"host": "localhost"}}]
    with listening() as sock, held_port() as admin, gateways.starting(anywhere(sock, admin, *upstreams)) as gateway:
        await logged(gateway, '"upstream": "b"')
        serving = {line["upstream"]: line["address"] for line in gateway.lines() if line["message"] == "serving"}
        port = port_in(serving["a"])
        assert port not in (0, 80)
        assert serving == {"a": f"http://127.0.0.1:{port}/a/v1/mcp", "b": f"http://localhost:{port}/v1/mcp"}


async def test_a_loop_that_only_shows_at_run_time_is_cut(gateways: Gateways) -> None:
    """The gateway takes any port, and is then told that this is where its upstream is."""
    with listening() as sock, held_port() as admin:
        settings = anywhere(sock, admin, {"name": "up", "requests_max": 50, "connect_timeout": "1s"})
        with gateways.starting(settings) as gateway:
            port = port_in((await logged(gateway, "serving"))["address"])
            settings["upstreams"][0]["url"] = f"http://127.0.0.1:{port}/mcp"
            gateway.renew(settings)
            await logged(gateway, "reloaded")
            assert asked(port, f"127.0.0.1:{port}") == (
                508,
                "Loop Detected: this request comes from taskgate itself: the url of an upstream leads back to it",
            )
            await eventually(lambda: gateway.log.count('"Loop"') == 1, "one request that came round")


def anywhere(sock: socket.socket, admin: socket.socket, *upstreams: Json) -> Json:
    """A configuration of a gateway on any port, before upstreams that are all at that socket."""
    url = f"http://127.0.0.1:{port_of(sock)}/v1/mcp"
    listeners = {"listen": "127.0.0.1:0", "admin": {"listen": f"127.0.0.1:{port_of(admin)}"}}
    return {**listeners, "upstreams": [{"url": url, **upstream} for upstream in upstreams]}


def port_in(address: str) -> int:
    return int(address.split(":")[2].partition("/")[0])
