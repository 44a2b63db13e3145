"""Addresses of the upstream's own, as the gateway's (DESIGN 3.10): the rules, without a socket."""

import json
from typing import Any, Final

import pytest

from gateway.http.address_rewriting import Addresses, Move, is_resource_metadata, is_well_known, misplaced
from gateway.http.header_fields import Headers

OWN: Final = "http://127.0.0.1:3001"
GATEWAY: Final = "http://gw.example:8080"


def fields(*pairs: tuple[str, str]) -> Headers:
    return Headers((name.encode(), value.encode()) for name, value in pairs)


def move(
    url: str = OWN,
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


XFP: Final = "X-Forwarded-Proto"
HTTPS: Final[dict[str, Any]] = {"url": "https://tools.example"}


@pytest.mark.parametrize(
    ("client", "more", "expected"),
    [
        ([], {}, "http://gw.example"),
        ([(XFP, "https")], {}, "https://gw.example"),
        ([(XFP, "HTTPS, http")], {}, "https://gw.example"),
        ([(XFP, "http"), ("Forwarded", "proto=https")], {}, "http://gw.example"),
        ([(XFP, "gopher")], {}, "http://gw.example"),
        ([("Forwarded", "for=192.0.2.1;proto=https;by=x, for=x;proto=http")], {}, "https://gw.example"),
        ([("Forwarded", 'for="[::1]"; Proto="https"')], {}, "https://gw.example"),
        ([("Forwarded", "for=proto=https")], {}, "http://gw.example"),
        ([("X-Forwarded-Host", "evil.example")], {}, "http://gw.example"),
        ([], {"tls": True}, "https://gw.example"),
        ([], HTTPS, "https://gw.example"),
        ([], {**HTTPS, "host": "localhost:8080"}, "http://localhost:8080"),
        ([], {**HTTPS, "host": "[::1]:8080"}, "http://[::1]:8080"),
        ([], {"host": "", "public": "https://mcp.example/x/"}, "https://mcp.example/x"),
        ([], {"public": "https://mcp.example/x/"}, "https://mcp.example/x"),
    ],
)
def test_the_scheme_is_the_one_that_the_client_used(
    client: list[tuple[str, str]], more: dict[str, Any], expected: str
) -> None:
    """It is https behind TLS, and before an https upstream but on this machine."""
    given = {"url": OWN, "host": "gw.example", **more}
    assert moving(given.pop("url"), *client, **given).base.decode() == expected


def short(value: object) -> str:
    """The name of a case."""
    return str(value)[:40]


TOO_LONG: Final = ["a" * 256, "a" * 60_000, f"[{'1' * 46}]", "a:123456"]
NO_HOST: Final = ["", 'a"b', "a b", "a/b", "user@gw.example", "gw.example:http", "a\\b", "b@d", *TOO_LONG]


@pytest.mark.parametrize("host", NO_HOST, ids=short)
def test_without_a_usable_host_nothing_moves_and_no_address_is_the_servers_own(host: str) -> None:
    """The server is sent what the client says, and an empty `Host` is legal. Everything was its own then."""
    assert move(host=host) is None
    assert move(public="off") is None
    found = moving(host=host, sent=None, public="https://mcp.example/x")
    for said in ("http:///etc", "http://?a", "http://", "http://b@d/x", 'http://a"b/x', f"http://{host}/x"):
        assert found.text(said.encode()) == said.encode()
    assert found.text(b"http://127.0.0.1:3001/mcp") == b"https://mcp.example/x/mcp"


SAME: Final[dict[str, Any]] = {"sent": None, "prefix": "/research"}  # the server is sent the client's Host
GW: Final = GATEWAY + "/research"
AUTHORITY_GOES_ON: Final = [
    *("0", ".example", ":1", "@evil.example", "-x", "_x", "~x", "%40evil.example", "\u00e9.example"),
    *(f"{mark}x@evil.example" for mark in "!$&'()*+,;="),
]
# What a gateway before a server is like; a text of the server's, and what it becomes: the same if it is None.
TEXTS: Final[list[tuple[dict[str, Any], str, str | None]]] = [
    *(
        ({}, f"<{spelled}:3001/mcp>", f"<{GATEWAY}/mcp>")
        for spelled in (
            *("http://127.0.0.1", "http://localhost", "http://[::1]", "HTTP://LocalHost"),
            "http:\\/\\/127.0.0.1",
        )
    ),
    # The port of the scheme may be left out.
    ({**HTTPS, "sent": "tools.example"}, "https://tools.example:443", "https://gw.example:8080"),
    ({"url": "https://tools.example:443", "sent": "tools.example"}, HTTPS["url"], "https://gw.example:8080"),
    ({**HTTPS, "sent": "tools.example"}, "http://tools.example:443", None),
    # What the server was told is its own too: uvicorn believes X-Forwarded-Proto of a peer on this machine, and builds
    # addresses with the Host that it gets.
    ({"client": (XFP, "https")}, "https://127.0.0.1:3001/mcp/", "https://gw.example:8080/mcp/"),
    ({"sent": "tools.internal:3001"}, "http://tools.internal:3001/mcp/", f"{GATEWAY}/mcp/"),
    # A server that is sent the client's Host gets the prefix once.
    (SAME, f"{GATEWAY}/mcp/", f"{GW}/mcp/"),
    *((SAME, f'"{GW}{own}"', None) for own in ("", "/", "?a", "#a", "/mcp", "/mcp/")),
    *((SAME, f"{GW}{more}/mcp/", f"{GW}/research{more}/mcp/") for more in ("2", "-2", "_2", ".2", "~", "%32", "@2")),
    # An address ends where its authority does.
    *(
        ({}, f"<'{OWN}{after}", f"<'{GATEWAY}{after}")
        for after in (
            *("", "/", "?", "#", '"', "'", ")", ", x", "; x", "', x", "'>", " ", "\\/x", '\\"', ">", "]", ",realm=x"),
            *(";charset=x", ",https://elsewhere/a@b", ',"a@b"', ", a@b", ";x a@b", ",a\\/@b", ",x?a@b", "',x"),
        )
    ),
    *(
        ({"url": url, "sent": None}, said, None)
        for url in (OWN, HTTPS["url"])
        for more in AUTHORITY_GOES_ON
        for said in (f"{url}{more}/mcp", f"{url}{more}", f"{url},a;'b{more.lstrip(',;')}@x/")
    ),
]


@pytest.mark.parametrize(("given", "said", "expected"), TEXTS, ids=short)
def test_an_address_of_the_servers_own_moves_and_no_other(
    given: dict[str, Any], said: str, expected: str | None
) -> None:
    more = dict(given)
    client = [more.pop("client")] if "client" in more else []
    found = moving(more.pop("url", OWN), *client, **more)
    assert found.text(said.encode()).decode() == (said if expected is None else expected)
    if expected is None and given.get("sent", "") is None and given != SAME:
        for alone in (said.encode(), said.encode().partition(b":")[2]):
            assert found.address(alone) == alone


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
    said = b'{"origins": "http://127.0.0.1:3001,http://localhost:3001;http://[::1]:3001,https://elsewhere"}'
    own = b"http://gw.example:8080"
    assert moving().document(said) == b'{"origins": "%b,%b;%b,https://elsewhere"}' % (own, own, own)
    found = moving(**SAME)  # PHP escapes slashes in JSON
    for base in (b"http:\\/\\/gw.example:8080\\/research", b"http:\\/\\/gw.example:8080/research"):
        for path in (b"", b"\\/mcp", b"/mcp"):
            said = b'{"resource": "%s%s"}' % (base, path)
            assert found.document(said) is said
        assert found.document(base + b"2") == b"http://gw.example:8080/research/research2"


ELSEWHERE: Final = "https://elsewhere.example/?next=http://127.0.0.1:3001/"
ISSUER: Final = "app://back?code=1&iss=http%3A%2F%2F{}%2Ft&state=s"


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
        (ELSEWHERE, ELSEWHERE),
        (ISSUER.format("127.0.0.1%3A3001"), ISSUER.format("gw.example%3A8080%2Fp")),
        ("app://back?iss=https%3A%2F%2Flogin.example", "app://back?iss=https%3A%2F%2Flogin.example"),
        ("app://back?miss=http://127.0.0.1:3001", "app://back?miss=http://127.0.0.1:3001"),
        # One that stands alone does not end at a comma. A name may have one in it, and `x.evil.example` a name for
        # every word in front of it.
        *(
            (f"{base}{more}", f"{base}{more}")
            for more in (",x", ";x", ",x.evil.example/", ";")
            for base in (OWN, "//127.0.0.1:3001", "app://back?iss=http%3A%2F%2F127.0.0.1%3A3001")
        ),
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
    assert moving(public="https://mcp.example/x/", prefix="/research").address(b"/mcp/") == b"/x/mcp/"


def test_challenges_move_where_a_client_reads_them() -> None:
    found = moving()
    said = fields(("WWW-Authenticate", 'Bearer resource_metadata="http://127.0.0.1:3001/m"'), ("Location", "/x"))
    for status, expected in ((401, "gw.example:8080"), (403, "gw.example:8080"), (407, "127.0.0.1:3001")):
        challenge = found.headers(status, said).get(b"www-authenticate")
        assert challenge == f'Bearer resource_metadata="http://{expected}/m"'.encode()


PROTECTED, OPENID = "/.well-known/oauth-protected-resource", "/.well-known/openid-configuration"
WELL_KNOWN = [PROTECTED, f"{PROTECTED}/mcp?x=1", "/.well-known/oauth-authorization-server/tenant"]
WELL_KNOWN += [OPENID, f"{OPENID}/tenant", f"/tenant{OPENID}"]
OTHERS = [f"{OPENID}2", "/.well-known/jwks.json", f"/mcp?next={PROTECTED}"]


def test_where_authorization_documents_stand() -> None:
    assert [target for target in (*WELL_KNOWN, *OTHERS) if is_well_known(target.encode())] == WELL_KNOWN


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


@pytest.mark.parametrize(
    ("status", "location", "path", "words"),
    [
        (307, "/mcp/", "/mcp", "redirects to /mcp/: put that into url"),
        (307, "/mcp/", "/mcp/", "redirects to /mcp/, as url has it: the client's path is wrong"),
        (404, "", "/mcp", "nothing is there: the path of url is wrong"),
        (404, "", "/mpc", "nothing is there: the client's path is wrong, url has /mpc"),
    ],
)
def test_whose_path_is_wrong(status: int, location: str, path: str, words: str) -> None:
    """DESIGN 8.14."""
    assert misplaced(status, location, "http://a:1/mcp?key=s3cr3t", path) == words
