"""Addresses of the upstream's own, as the gateway's (DESIGN 3.10): the rules, without a socket."""

import json
from typing import Any

import pytest

from gateway.http.addresses import DOCUMENT_BYTES_MAX, Addresses, Move, is_resource_metadata, is_well_known
from gateway.http.fields import Headers


def fields(*pairs: tuple[str, str]) -> Headers:
    return Headers((name.encode(), value.encode()) for name, value in pairs)


def move(
    url: str = "http://127.0.0.1:3001",
    *client: tuple[str, str],
    host: str = "gw.example:8080",
    sent: str | None = "127.0.0.1:3001",
    public: str | None = None,
    prefix: str = "",
    tls: bool = False,
) -> Move | None:
    scheme, _, authority = url.partition("://")
    head = fields(("Host", host), *client)
    return Addresses(scheme, authority, sent, public, prefix).move(head, head, tls)


def moving(*given: Any, **more: Any) -> Move:
    found = move(*given, **more)
    assert found is not None
    return found


def base(
    *client: tuple[str, str], url: str = "http://127.0.0.1:3001", host: str = "gw.example", tls: bool = False
) -> str:
    return moving(url, *client, host=host, tls=tls).base.decode()


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ([], "http://gw.example"),
        ([("X-Forwarded-Proto", "https")], "https://gw.example"),
        ([("X-Forwarded-Proto", "HTTPS, http")], "https://gw.example"),
        ([("X-Forwarded-Proto", "http"), ("Forwarded", "proto=https")], "http://gw.example"),
        ([("X-Forwarded-Proto", "gopher")], "http://gw.example"),
        ([("Forwarded", "for=192.0.2.1;proto=https;by=x, for=x;proto=http")], "https://gw.example"),
        ([("Forwarded", 'for="[::1]"; Proto="https"')], "https://gw.example"),
        ([("Forwarded", "for=proto=https")], "http://gw.example"),
        ([("X-Forwarded-Host", "evil.example")], "http://gw.example"),
    ],
)
def test_the_scheme_is_the_one_that_the_client_used(given: list[tuple[str, str]], expected: str) -> None:
    assert base(*given) == expected


def test_the_scheme_is_https_behind_tls_and_before_an_https_upstream_but_on_this_machine() -> None:
    assert base(tls=True) == "https://gw.example"
    assert base(url="https://tools.example") == "https://gw.example"
    assert base(url="https://tools.example", host="localhost:8080") == "http://localhost:8080"
    assert base(url="https://tools.example", host="[::1]:8080") == "http://[::1]:8080"


def short(value: str) -> str:
    """The name of a case."""
    return value[:20]


TOO_LONG = ["a" * 256, "a" * 60_000, f"[{'1' * 46}]", "a:123456"]


@pytest.mark.parametrize(
    "host", ["", 'a"b', "a b", "a/b", "user@gw.example", "gw.example:http", "a\\b", *TOO_LONG], ids=short
)
def test_without_a_usable_host_nothing_moves(host: str) -> None:
    assert move(host=host) is None


def test_a_public_address_is_taken_whatever_the_client_asked() -> None:
    for host in ("", "gw.example"):
        found = moving(host=host, public="https://mcp.example/x/", prefix="/research")
        assert found.base == b"https://mcp.example/x"
        assert found.address(b"/mcp/") == b"/x/mcp/"


def test_off_moves_nothing() -> None:
    assert move(public="off") is None


def test_every_spelling_of_a_loopback_origin_moves() -> None:
    for spelled in (
        b"http://127.0.0.1",
        b"http://localhost",
        b"http://[::1]",
        b"HTTP://LocalHost",
        b"http:\\/\\/127.0.0.1",
    ):
        assert moving().text(b"<%b:3001/mcp>" % spelled) == b"<http://gw.example:8080/mcp>"


def test_the_port_of_the_scheme_may_be_left_out() -> None:
    for url, said in (
        ("https://tools.example", "https://tools.example:443"),
        ("https://tools.example:443", "https://tools.example"),
    ):
        found = moving(url, sent="tools.example")
        assert found.text(said.encode()) == b"https://gw.example:8080"
        assert found.text(b"http://tools.example:443") == b"http://tools.example:443"


def test_what_the_server_was_told_is_its_own_too() -> None:
    """uvicorn believes X-Forwarded-Proto of a peer on this machine, and builds addresses with the Host that it gets."""
    found = moving("http://127.0.0.1:3001", ("X-Forwarded-Proto", "https"))
    assert found.text(b"https://127.0.0.1:3001/mcp/") == b"https://gw.example:8080/mcp/"
    fixed = moving(sent="tools.internal:3001")
    assert fixed.text(b"http://tools.internal:3001/mcp/") == b"http://gw.example:8080/mcp/"


def test_a_server_that_is_sent_the_clients_host_gets_the_prefix_once() -> None:
    found = moving(sent=None, prefix="/research")
    assert found.text(b"http://gw.example:8080/mcp/") == b"http://gw.example:8080/research/mcp/"
    assert found.text(b"http://gw.example:8080/research/mcp/") == b"http://gw.example:8080/research/mcp/"
    for more in (b"2", b"-2", b"_2", b".2", b"~", b"%32", b"@2"):
        said = b"http://gw.example:8080/research%s/mcp/" % more
        assert found.text(said) == said.replace(b"8080/", b"8080/research/")
    for own in (b"", b"/", b"?a", b"#a", b"/mcp"):
        said = b'"http://gw.example:8080/research%s"' % own
        assert found.text(said) == said


def test_a_server_that_is_sent_the_clients_host_and_escapes_its_slashes_gets_the_prefix_once() -> None:
    """PHP writes JSON so."""
    found = moving(sent=None, prefix="/research")
    for base in (b"http:\\/\\/gw.example:8080\\/research", b"http:\\/\\/gw.example:8080/research"):
        for own in (b"", b"\\/mcp", b"/mcp"):
            said = b'{"resource": "%s%s"}' % (base, own)
            assert found.document(said) is said
        assert found.document(base + b"2") == b"http://gw.example:8080/research/research2"


@pytest.mark.parametrize("host", ["", "b@d", 'a"b', *TOO_LONG], ids=short)
def test_a_host_that_is_none_makes_no_address_the_servers_own(host: str) -> None:
    """The server is sent what the client says, and an empty `Host` is legal. Everything was its own then."""
    found = moving(host=host, sent=None, public="https://mcp.example/x")
    for said in ("http:///etc", "http://?a", "http://", "http://b@d/x", 'http://a"b/x', f"http://{host}/x"):
        assert found.text(said.encode()) == said.encode()
    assert found.text(b"http://127.0.0.1:3001/mcp") == b"https://mcp.example/x/mcp"


AUTHORITY_GOES_ON = [
    *("0", ".example", ":1", "@evil.example", "-x", "_x", "~x", "%40evil.example", "\u00e9.example"),
    *(f"{mark}x@evil.example" for mark in "!$&'()*+,;="),
]


@pytest.mark.parametrize("url", ["http://127.0.0.1:3001", "https://tools.example"])
@pytest.mark.parametrize("more", AUTHORITY_GOES_ON)
def test_an_address_whose_authority_only_begins_like_the_servers_stays(url: str, more: str) -> None:
    found = moving(url, sent=None)
    for said in (f"{url}{more}/mcp".encode(), f"{url}{more}".encode(), f"{url},a;'b{more.lstrip(',;')}@x/".encode()):
        assert found.text(said) == said
        assert found.address(said) == said
        assert found.address(said.partition(b":")[2]) == said.partition(b":")[2]


@pytest.mark.parametrize(
    "after",
    [
        *("", "/", "?", "#", '"', "'", ")", ", x", "; x", "', x", "'>", " ", "\\/x", '\\"', ">", "]"),
        *(",realm=x", ";charset=x", ",https://elsewhere/a@b", ',"a@b"', ", a@b", ";x a@b", ",a\\/@b", ",x?a@b", "',x"),
    ],
)
def test_an_address_ends_where_its_authority_does(after: str) -> None:
    found = moving()
    moved = found.text(f"<'http://127.0.0.1:3001{after}".encode())
    assert moved == f"<'http://gw.example:8080{after}".encode()


def test_each_origin_of_a_list_in_one_string_moves() -> None:
    found = moving()
    said = b'{"origins": "http://127.0.0.1:3001,http://localhost:3001;http://[::1]:3001,https://elsewhere"}'
    own = b"http://gw.example:8080"
    assert found.document(said) == b'{"origins": "%b,%b;%b,https://elsewhere"}' % (own, own, own)


@pytest.mark.parametrize("more", [",x", ";x", ",x.evil.example/", ";"])
def test_an_address_that_stands_alone_does_not_end_at_a_comma(more: str) -> None:
    """A name may have a comma in it, and `x.evil.example` a name for every word in front of it."""
    found = moving()
    for said in (f"http://127.0.0.1:3001{more}".encode(), f"//127.0.0.1:3001{more}".encode()):
        assert found.address(said) == said
    location = f"app://back?iss=http%3A%2F%2F127.0.0.1%3A3001{more}"
    assert found.headers(302, fields(("Location", location))).get(b"location") == location.encode()


def test_a_document_is_moved_whole_however_it_is_escaped() -> None:
    found = moving(prefix="/p")
    written = (
        '{"a": "http\\u003a\\u002f/127.0.0.1:3001/x", "b": ["\\u0068ttp://localhost:3001"], "c": "\\ud83d", "n": 1e400}'
    )
    moved = found.document(written.encode())
    assert moved == (
        b'{"a": "http://gw.example:8080/p/x", "b": ["http://gw.example:8080/p"], "c": "\\ud83d", "n": 1e400}'
    )
    untouched = b'{"a": "\\u0041", "b": "http://elsewhere.example"}'
    assert found.document(untouched) is untouched


@pytest.mark.parametrize("unit", [b'\\"', b"\\u0041", b'"\\u0041"', b"\\"])
def test_escapes_without_an_address_stay_however_many_there_are(unit: bytes) -> None:
    """Strings that never end were once searched from each of their quotes: the loop was held for minutes."""
    found = moving()
    data = b'"\\u0041' + unit * (DOCUMENT_BYTES_MAX // len(unit))
    assert found.document(data) is data


@pytest.mark.parametrize(
    ("location", "expected"),
    [
        ("http://127.0.0.1:3001/mcp/?a#b", "http://gw.example:8080/p/mcp/?a#b"),
        ("/mcp/", "/p/mcp/"),
        ("mcp/", "mcp/"),
        ("?a", "?a"),
        ("//127.0.0.2/x", "//127.0.0.2/x"),
        ("//127.0.0.1:3001/mcp/", "http://gw.example:8080/p/mcp/"),
        ("//LOCALHOST:3001", "http://gw.example:8080/p"),
        ("//127.0.0.1:3001@evil.example/", "//127.0.0.1:3001@evil.example/"),
        ("///127.0.0.1:3001/mcp", "///127.0.0.1:3001/mcp"),
        (
            "https://elsewhere.example/?next=http://127.0.0.1:3001/",
            "https://elsewhere.example/?next=http://127.0.0.1:3001/",
        ),
        (
            "app://back?code=1&iss=http%3A%2F%2F127.0.0.1%3A3001%2Ft&state=s",
            "app://back?code=1&iss=http%3A%2F%2Fgw.example%3A8080%2Fp%2Ft&state=s",
        ),
        ("app://back?iss=https%3A%2F%2Flogin.example", "app://back?iss=https%3A%2F%2Flogin.example"),
        ("app://back?miss=http://127.0.0.1:3001", "app://back?miss=http://127.0.0.1:3001"),
    ],
)
def test_a_location(location: str, expected: str) -> None:
    found = moving(prefix="/p")
    moved = found.headers(302, fields(("X", "http://127.0.0.1:3001/"), ("location", location)))
    assert list(moved) == [(b"X", b"http://127.0.0.1:3001/"), (b"location", expected.encode())]


def test_a_location_that_names_the_gateway_without_a_scheme_is_right_already() -> None:
    found = moving(sent=None, prefix="/p")
    assert found.address(b"//gw.example:8080/p/mcp/") == b"//gw.example:8080/p/mcp/"
    assert found.address(b"//gw.example:8080/mcp/") == b"http://gw.example:8080/p/mcp/"


def test_challenges_move_where_a_client_reads_them() -> None:
    found = moving()
    said = fields(("WWW-Authenticate", 'Bearer resource_metadata="http://127.0.0.1:3001/m"'), ("Location", "/x"))
    for status, expected in ((401, "gw.example:8080"), (403, "gw.example:8080"), (407, "127.0.0.1:3001")):
        challenge = found.headers(status, said).get(b"www-authenticate")
        assert challenge == f'Bearer resource_metadata="http://{expected}/m"'.encode()


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("/.well-known/oauth-protected-resource", True),
        ("/.well-known/oauth-protected-resource/mcp?x=1", True),
        ("/.well-known/oauth-authorization-server/tenant", True),
        ("/.well-known/openid-configuration", True),
        ("/.well-known/openid-configuration/tenant", True),
        ("/tenant/.well-known/openid-configuration", True),
        ("/.well-known/openid-configuration2", False),
        ("/.well-known/jwks.json", False),
        ("/mcp?next=/.well-known/oauth-protected-resource", False),
    ],
)
def test_where_authorization_documents_stand(target: str, expected: bool) -> None:
    assert is_well_known(target.encode()) == expected


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        ({"resource": "x", "authorization_servers": ["y"], "more": 1}, True),
        ({"resource": "x"}, False),
        ({"authorization_servers": ["y"]}, False),
        ({"resource": 1, "authorization_servers": ["y"]}, False),
        ({"resource": "x", "authorization_servers": "y"}, False),
        ([{"resource": "x", "authorization_servers": ["y"]}], False),
        ({"jsonrpc": "2.0", "id": 1, "result": {"resource": "x", "authorization_servers": ["y"]}}, False),
    ],
)
def test_what_the_metadata_of_a_resource_is(document: object, expected: bool) -> None:
    text = json.dumps(document).encode()
    assert is_resource_metadata(text) == expected
    assert not is_resource_metadata(text[:-1])
