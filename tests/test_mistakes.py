"""The mistakes of the first hour: what a person did, and the words that he is told, by real commands and gateways."""

import json
import shlex
import ssl
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Final

import pytest

from tests.certificates import signed
from tests.forked import ran
from tests.launch import EVENTUALLY_S, POLL_S, Gateway, Gateways, Json, fetched, held_port, listening, port_of
from tests.relay.messages import TASKS_CAPABILITY, answer, fault, response, result
from tests.upstream import fields_of, in_a_thread

ONE: Final = "upstreams: [{name: a, url: 'http://127.0.0.1:3001/mcp'}]\n"
AT: Final = "http://127.0.0.1:3001/mcp"
BOTH: Final = "Not Acceptable: Client must accept both application/json and text/event-stream"  # as the SDKs have it
# What may be written for an address.
URL: Final = (
    "http:// or https:// and a host, perhaps a port up to 65535 and a path, such as http://127.0.0.1:8000/mcp or "
    "http://[::1]:8000; no zone, user, query or fragment"
)
LISTEN: Final = (
    "HOST:PORT, such as 127.0.0.1:8080 or [::1]:8080, the port from 0 to 65535; or unix:/PATH, the path of at most 107 "
    "bytes"
)
NO_URLS: Final = ("127.0.0.1:27012/mcp", "localhost:27012", "http://::1:3001/mcp", "http://[fe80::1%25eth0]:3001/mcp")
NO_LISTENERS: Final = ("8080", ":8080", "localhost", "::1:8080", "127.0.0.1:70000", "/run/x")

# What was written on a command line, and what is said. Each ends with status 2.
COMMANDS: Final = {
    "a misspelt command": (f"tsks {AT}", "unknown command tsks: did you mean tasks?"),
    "no command": (AT, f"unknown command {AT}: did you mean --upstream {AT}, or taskgate try {AT}?"),
    "no command, no scheme": (AT[7:], f"did you mean --upstream {AT}, or taskgate try {AT}?"),
    "nothing": ("", "one of --config FILE and --upstream URL is needed; --help shows examples"),
    "a level": (f"--upstream {AT} --log-level warn", "unknown --log-level warn: did you mean warning?"),
    "a level in capitals": (f"--upstream {AT} --log-level INFO", "unknown --log-level INFO: did you mean info?"),
    "a misspelt flag": (f"--upstrem {AT}", "did you mean --upstream?"),
    "a misspelt flag and its value": (f"--upstrem={AT}", "did you mean --upstream?"),
    "a misspelt flag of stdio": ("stdio --confg x -- true", "did you mean --config?"),
    "a misspelt flag of try": (f"try --sesion x {AT}", "did you mean --session?"),
    "a misspelt flag of tasks": (f"tasks --created-aftr 3d {AT}", "did you mean --created-after?"),
    "a misspelt flag of demo": ("demo --onse", "did you mean --once?"),
    "a flag that is cut short": (f"try --creat brew {AT}", "unknown flag --creat: did you mean --create?"),
    "a level that is none": (f"--upstream {AT} --log-level loud", "one of debug, info, warning, error"),
    "a flag that demo has not": (f"demo --upstream {AT}", "unknown flag --upstream"),
    "a command behind flags": (f"--upstream {AT} demo", "goes with none of the other flags"),
    "against, without a check": ("--config /x --against /x", "--against goes with --check and --config"),
    "against, without a file": (f"--check --upstream {AT} --against /x", "--against goes with --check and --config"),
    "a file that is not there": ("--config /nowhere.yaml", "/nowhere.yaml: cannot be read: No such file"),
    "an unreadable file": ("--config /", "/: cannot be read: Is a directory"),
    "the gateway's own address": ("--upstream http://127.0.0.1:8080/mcp", "--upstream: expected the address of an MCP"),
    # tests/test_config.py has more that is no address; here are those that people write.
    **{
        f"{key} {text}": (flags.format(text), f"{key.split()[0]}: expected {allowed}; given '{text}'")
        for key, flags, allowed, wrong in (
            ("--upstream", "--upstream {}", URL, NO_URLS),
            ("URL", "try {}", URL, NO_URLS),
            ("--listen", f"--upstream {AT} --listen {{}}", LISTEN, NO_LISTENERS),
            ("--admin", f"--upstream {AT} --admin {{}}", LISTEN, NO_LISTENERS),
            ("--admin of stdio", "stdio --admin {} -- true", LISTEN, NO_LISTENERS),
        )
        for text in wrong
    },
    # `try` and `tasks`
    "a status": (f"tasks --status workin {AT}", "--status: given 'workin', allowed is comma-separated statuses: wor"),
    "too long ago": (f"tasks --created-after 999999w {AT}", "or how long ago, such as 3d or 2h"),
    "a timestamp": (f"tasks --created-after yesterday {AT}", "or how long ago, such as 3d or 2h"),
    "an order": (f"tasks --order up {AT}", '"asc" or "desc"'),
    "no server": ("try", "one server is needed"),
    "two servers": (f"try {AT} -- true", "one server is needed"),
    "a header": (f"try --header 'no colon' {AT}", "expected 'Name: value'"),
    "a header's name": (f"try --header 'X Org: a' {AT}", "expected 'Name: value', no space in the name"),
    "a session of a command": ("try --session x -- true", "go with a URL"),
    "arguments": (f"try --arguments '{{' {AT}", "--arguments: given '{', allowed is a JSON object"),
    "arguments in a list": (f"try --arguments [1] {AT}", "--arguments: given '[1]', allowed is a JSON object"),
    "no tasks": (f"try --count 0 {AT}", "--count: given '0', allowed is a whole number of 1 or more"),
    "other tasks": (f"try --count x {AT}", "--count: given 'x', allowed is a whole number of 1 or more"),
    "no seconds": (f"try --seconds 0 {AT}", "--seconds: given '0', allowed is a number above 0"),
    "other seconds": (f"try --seconds nan {AT}", "--seconds: given 'nan', allowed is a number above 0"),
    "no URL": ("tasks 'not a url'", "http:// or https://"),
    "no such command": ("try -- no-such-command", "cannot start 'no-such-command'"),
    "a command that ends": ("tasks -- echo hello", "echo hello: the command has ended, or writes no MCP"),
}
PREFIXED: Final = "- {{name: {}, url: 'http://127.0.0.1:3001/', match: {{prefix: /x}}}}\n"
# A configuration, on standard input, and what is said likewise.
CONFIGS: Final = {
    "a key": (ONE + "limts: {}\n", "standard input:2: limts: unknown key; did you mean limits?"),
    "YAML with a tab": ("index:\n\tpage_size: 1\n", ":2: not YAML: a tab stands where YAML wants spaces"),
    "YAML without quotes": ("listen: a: b\n", "not YAML: a value has `: ` in it and no quotes"),
    "YAML, indented wrongly": ("upstreams:\n  - name: a\n url: x\n", "not indented as its neighbours are"),
    "YAML, a list": ("upstreams: [\n", "is not closed"),
    "YAML, a mapping": ("upstreams: [{name: a\n", "is not closed"),
    "YAML, a quote": ("listen: 'x\n", "a quote is not closed"),
    "YAML, a sign": ("listen: @x\n", "put it in quotes"),
    "two that match the same": (
        ONE.replace("]", ", {name: b, url: 'http://127.0.0.1:3002/mcp'}]"),
        "upstreams[1]: the same requests as those of upstreams[0]: give one its own match.prefix, such as /two",
    ),
    "two with the same prefix": (
        "upstreams:\n" + PREFIXED.format("a") + PREFIXED.format("b"),
        "upstreams[1].match: the same requests as those of upstreams[0]: give one its own match.prefix",
    ),
}

# An address: what `taskgate try` says of it, and what the gateway's client or its log is told.
ADDRESSES: Final = {
    "path": (
        "http://127.0.0.1:{server}/wrong",
        "/wrong is not MCP, but another path of it is: taskgate try http://127.0.0.1:{server}/mcp",
        "nothing is there: the path of url is wrong",
    ),
    "port": ("http://127.0.0.1:{other}/mcp", "does not answer in HTTP", "cannot be passed on: it is not HTTP"),
    "down": (
        "http://127.0.0.1:{nobody}/mcp",
        "127.0.0.1:{nobody} cannot be reached: Connection refused; is the server running there?",
        "the upstream at 127.0.0.1:{nobody} cannot be reached: Connection refused",
    ),
    "host": ("http://no-such-host.invalid/mcp", "; is the name right?\n", "; is the name right?"),
    "self-signed": (
        "https://127.0.0.1:{tls}/mcp",
        "TLS: its certificate is not trusted: self-signed certificate; SSL_CERT_FILE=FILE names its authority",
        "TLS: its certificate is not trusted: self-signed certificate; tls.ca names its authority",
    ),
    "http-to-https": (
        "http://127.0.0.1:{tls}/mcp",
        "closed the connection without an answer: is it https?",
        "the upstream closed the connection without an answer: is it https?",
    ),
    "https-to-http": (
        "https://127.0.0.1:{server}/mcp",
        "cannot be reached: TLS: wrong version number; does it speak http?",
        "cannot be reached: TLS: wrong version number; does it speak http?",
    ),
}

# The parameters of a client's `tasks/list`, whether it has an `Accept`, and what the answer says.
REQUESTS: Final[dict[str, tuple[Json, bool, str]]] = {
    "a status": ({"status": "workin"}, True, 'status: given "workin", allowed is an array of statuses: working, '),
    "a timestamp": ({"createdAfter": "yesterday"}, True, "allowed is an RFC 3339 timestamp with its offset, such as"),
    "an old cursor": ({"cursor": "taskgate3.x.y"}, True, "of this version of taskgate: begin at the first page"),
    "the server's cursor": ({"status": "failed", "cursor": "7"}, True, "with the same criteria; else begin at the fir"),
    "bounds": (
        {"createdAfter": "2026-01-02T00:00:00Z", "createdBefore": "2026-01-01T00:00:00Z"},
        True,
        "allowed is an instant not later than `createdBefore`",
    ),
    "Accept": ({"status": "working"}, False, BOTH),
    "a misspelt name": ({"filter": {"staus": "working"}}, True, "did you mean `status`?"),
    "a misspelt criterion": ({"staus": "working"}, True, '"_meta":{"taskgate/ignored":["staus"]}'),
}


def server(head: bytes, body: bytes) -> bytes:
    """A server without tasks at /mcp, as strict as those of the SDKs."""
    request, message = head.split(b"\r\n")[0], json.loads(body or b"{}")
    opened = {"protocolVersion": "2025-11-25", "capabilities": {"tasks": TASKS_CAPABILITY}}
    results: Json = {"initialize": opened, "tasks/list": {"tasks": []}}
    if request.startswith(b"GET"):
        return response(b"", status=b"405 Method Not Allowed")
    if b" /mcp " not in request:
        return response(b"Not Found", status=b"404 Not Found")
    if not {"application/json", "text/event-stream"} <= set(fields_of(head).get("accept", "").split(", ")):
        return answer(fault(None, -32000, BOTH), status=b"406 Not Acceptable")
    if "id" not in message:
        return response(b"", status=b"202 Accepted")
    return answer(result(message["id"], results[message["method"]]))


def redis(_head: bytes, _body: bytes) -> bytes:
    """Another service."""
    return b"-ERR unknown command 'POST'\r\n"


@pytest.fixture(scope="module")
def ports(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, int]]:
    folder: Path = tmp_path_factory.mktemp("certificates")
    signed(folder / "cert.pem", folder / "key.pem")
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    with (
        held_port() as nobody,
        in_a_thread(server) as one,
        in_a_thread(server, tls) as secure,
        in_a_thread(redis) as no,
    ):
        yield {"nobody": port_of(nobody), "server": one, "tls": secure, "other": no}


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory, ports: dict[str, int]) -> Iterator[Gateway]:
    """One gateway for all addresses: each wrong one is behind its name, the right one at the root."""
    wrong = [
        {"name": name, "url": url.format(**ports), "match": {"prefix": f"/{name}"}}
        for name, (url, *_) in ADDRESSES.items()
    ]
    right = {"name": "right", "url": f"http://127.0.0.1:{ports['server']}/mcp"}
    with Gateways(tmp_path_factory.mktemp("gateway")).process(1, upstreams=[right, *wrong]) as one:
        yield one


def told(gateway: Gateway, path: str, method: str, params: Json, accepts: bool) -> Iterator[str]:
    """The body of an answer, with what the log says since then: it is written after the answer."""
    before, fields = len(gateway.log), {"Mcp-Protocol-Version": "2025-11-25"}
    if accepts:
        fields["Accept"] = "application/json, text/event-stream"
    _, text = fetched(gateway.port, path, {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}, **fields)
    if '"error"' in text:
        text = json.loads(text)["error"]["message"]
    deadline = time.monotonic() + EVENTUALLY_S
    while time.monotonic() < deadline:
        yield text + gateway.log[before:]
        time.sleep(POLL_S)


RUNS = [(flags, "", words) for flags, words in COMMANDS.values()]
RUNS += [("--check --config -", text, words) for text, words in CONFIGS.values()]


@pytest.mark.parametrize(("flags", "text", "words"), RUNS, ids=[*COMMANDS, *CONFIGS])
def test_a_wrong_command_line_or_configuration(flags: str, text: str, words: str) -> None:
    ended = ran(*shlex.split(flags), text=text)
    assert (ended.returncode, ended.stdout, "Traceback" in ended.stderr) == (2, "", False), ended
    assert words in ended.stderr and "usage:" not in ended.stderr


def test_a_line_of_a_header_file_is_named_without_its_value(tmp_path: Path) -> None:
    (tmp_path / "fields").write_text("X-Org: research\n\nAuthorization Bearer secret\n")
    ended = ran("tasks", "--header-file", f"{tmp_path}/fields", AT)
    words = f"taskgate tasks: --header-file: {tmp_path}/fields:3: expected 'Name: value'"
    assert ended.returncode == 2 and ended.stderr.startswith(words) and "secret" not in ended.stderr


def test_every_flag_has_words() -> None:
    for command in ((), ("stdio",), ("try",), ("tasks",), ("demo",)):
        lines = ran(*command, "--help").stdout.split("\n")
        flags = {line: more for line, more in pairwise(lines) if line.startswith("  -")}
        bare = [line for line, more in flags.items() if "  " not in line.strip() and not more.startswith(" " * 20)]
        assert flags and bare == []
    assert "--status A,B          statuses: working, input_required, completed," in ran("tasks", "--help").stdout


@pytest.mark.parametrize("mistake", ADDRESSES)
def test_a_wrong_address(mistake: str, ports: dict[str, int], gateway: Gateway) -> None:
    url, by_try, by_gateway = (text.format(**ports) for text in ADDRESSES[mistake])
    for command in ("try", "tasks"):
        ended = ran(command, url)
        assert (ended.returncode, ended.stdout, "Traceback" in ended.stderr) == (2, "", False), ended
        assert by_try.replace("taskgate try", f"taskgate {command}") in ended.stderr
    path = f"/{mistake}/{url.rpartition('/')[2]}"
    assert any(by_gateway in text for text in told(gateway, path, "initialize", {}, accepts=True))


@pytest.mark.parametrize("path", ["/", "/mcp"])
def test_the_address_of_the_admin_listener(path: str, gateway: Gateway) -> None:
    ended = ran("try", f"http://127.0.0.1:{gateway.admin}{path}")
    words = f": this is taskgate's admin listener; clients use http://127.0.0.1:{gateway.port}/mcp or "
    assert ended.returncode == 2 and words in ended.stderr and ended.stderr.count("\n") == 1


@pytest.mark.parametrize("mistake", REQUESTS)
def test_a_wrong_request(mistake: str, gateway: Gateway) -> None:
    params, accepts, words = REQUESTS[mistake]
    said = next(text for text in told(gateway, "/mcp", "tasks/list", params, accepts) if words in text)
    assert ("did you mean status? The list is the server's, unfiltered" in said) == (mistake == "a misspelt criterion")


def test_a_port_that_is_taken() -> None:
    with listening() as taken, held_port() as free:
        busy, other = f"127.0.0.1:{port_of(taken)}", f"127.0.0.1:{port_of(free)}"
        for key, flags in {"listen (--listen)": (busy, other), "admin.listen (--admin)": (other, busy)}.items():
            ended = ran("--upstream", AT, "--listen", flags[0], "--admin", flags[1])
            words = f"taskgate: cannot listen on {busy}: Address already in use; {key}: end the process that has it"
            assert ended.returncode == 1 and words in ended.stderr
            assert "draining" not in ended.stderr, "it has not begun"


def test_an_address_that_every_machine_reaches(tmp_path: Path) -> None:
    """What is open is said; the addresses are those that a browser on this machine opens: `0.0.0.0` is none."""
    open_to = [
        "listen: on 0.0.0.0:{} Host and Origin are not checked: what is in front decides who comes in",
        "admin.listen: 0.0.0.0:{} is open: whoever reaches it sees the page and the metrics",
    ]
    with held_port() as listen, held_port() as admin:
        at = [f"0.0.0.0:{port_of(sock)}" for sock in (listen, admin)]
        words = [text.format(port_of(sock)) for text, sock in zip(open_to, (listen, admin), strict=True)]
        checked = ran("--check", "--upstream", AT, "--listen", at[0], "--admin", at[1]).stdout.splitlines()
        assert checked[1:] == [
            f"  http://127.0.0.1:{port_of(listen)}/mcp leads to {AT} (upstream)",
            *(f"  {w}" for w in words),
        ]
        config = {"listen": at[0], "admin": {"listen": at[1]}, "upstreams": [{"name": "up", "url": AT}]}
        with Gateways(tmp_path).starting(config) as gateway:
            gateway.wait()
            first, *more = gateway.lines()
            assert (first["address"], first["page"]) == (
                f"http://127.0.0.1:{port_of(listen)}/mcp",
                f"http://127.0.0.1:{port_of(admin)}/",
            )
            assert [line["why"] for line in more if line["message"] == "open to other machines"] == words
