"""The configuration: what is accepted and what it becomes; what is refused, and in which words."""

import os
import re
from pathlib import Path
from typing import Any, get_args, get_origin

import msgspec
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from gateway.config import Address, Config, ConfigError, NamedFile, Upstream, Url, for_upstream, load, parse, settings
from gateway.config.value_readers import Duration, DurationOrZero, Stall

EXAMPLE = Path(__file__).parent.parent / "config.example.yaml"
HTTPS = "upstreams:\n  - name: a\n    url: https://a/\n    "
MINIMAL = "upstreams:\n  - name: research\n    url: http://127.0.0.1:3001/mcp\n"


def upstream(lines: str) -> str:
    """A configuration whose only upstream has these lines more; they start at line 4."""
    return MINIMAL + "".join(f"    {line}\n" for line in lines.splitlines())


def two(first: str, second: str) -> str:
    """Two upstreams, `a` on line 2 and `b` on line 3, with these flow-style members more."""
    items = [f"- {{name: a, url: 'http://a/'{first}}}", f"- {{name: b, url: 'http://b/'{second}}}"]
    return "\n".join(["upstreams:", *items, ""])


def refusal(text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        parse(text, "gate.yaml")
    return str(caught.value)


# Each: the file, and what the message must contain: file:line, key, what was given, what is allowed.
BAD: list[tuple[str, list[str]]] = [
    # the document
    ("", ["gate.yaml:1:", "empty", "mapping", "upstreams"]),
    ("# nothing\n", ["gate.yaml:1:", "empty", "mapping", "upstreams"]),
    ("- a\n", ["gate.yaml:1:", "mapping", "a list"]),
    ("\nhello\n", ["gate.yaml:2:", "mapping", "'hello'"]),
    ("listen: a\n  b: c\n", ["gate.yaml:2:", "not YAML"]),
    ('listen: "\\UFFFFFFFF"\n', ["gate.yaml:1:", "not YAML"]),
    (MINIMAL + "---\n" + MINIMAL, ["gate.yaml:4:", "not YAML", "document"]),
    ("\nlisten: *gone\n", ["gate.yaml:2:", "not YAML", "gone"]),
    ("upstreams: &a\n  - *a\n", ["gate.yaml:1:", "upstreams[0]", "mapping", "a list"]),
    ("log: &a\n  level: *a\n", ["gate.yaml:2:", "log.level", "one of", "a mapping"]),
    ("&a\nlog: *a\n", ["gate.yaml:2:", "log.log", "unknown key"]),
    ("[" * 1000, ["gate.yaml:1:", "nested too deeply"]),
    (
        two(f", identity_headers: &a [{'A, ' * 6000}]", ", identity_headers: *a"),
        ["gate.yaml:2:", "upstreams[1].identity_headers", "more than 10000 values"],
    ),
    ("!x\nupstreams: []\n", ["gate.yaml:1:", "expected no tag", "!x"]),
    ("listen: !!python/name:os.system x\n", ["gate.yaml:1:", "listen", "tag", "python/name"]),
    ("index: {page_size: !!int x}\n", ["gate.yaml:1:", "index.page_size", "'x'"]),
    # keys
    (MINIMAL + "\nindx: {}\n", ["gate.yaml:5:", "indx", "unknown key", "mean index"]),
    (MINIMAL + "\nsalary: {}\n", ["gate.yaml:5:", "salary", "unknown key", "allowed: ", "limits"]),
    (
        upstream("\nconect_timeout: 1s"),
        ["gate.yaml:5:", "upstreams[0].conect_timeout", "unknown key", "mean connect_timeout"],
    ),
    (MINIMAL + '"a\\nb": 1\n', ["gate.yaml:4:", r"a\nb", "unknown key"]),
    (MINIMAL + "? [a]\n: x\n", ["gate.yaml:4:", "key", "a list", "text"]),
    (MINIMAL + "log: {}\n\nlog: {}\n", ["gate.yaml:6:", "log", "twice", "line 4"]),
    (MINIMAL + "index:\n  page_size: 1\n  page_size: 1\n", ["gate.yaml:6:", "index.page_size", "twice", "line 5"]),
    # shapes
    ("listen: 127.0.0.1:1\n", ["gate.yaml:1: ", "the required key upstreams is missing"]),
    ("\nupstreams: []\n", ["gate.yaml:2:", "upstreams", "a list of at least one", "an empty list"]),
    ("\nupstreams:\n", ["gate.yaml:2:", "upstreams", "list", "null"]),
    ("upstreams: {name: a}\n", ["gate.yaml:1:", "upstreams", "list", "a mapping"]),
    ("upstreams:\n- a\n", ["gate.yaml:2:", "upstreams[0]", "mapping", "'a'"]),
    ("upstreams:\n- name: a\n", ["gate.yaml:2:", "upstreams[0]", "required key", "url"]),
    ("upstreams:\n- url: http://a/\n", ["gate.yaml:2:", "upstreams[0]", "name"]),
    # addresses
    (MINIMAL + "listen: a:1\nadmin:\n  listen: a:1\n", ["gate.yaml:6:", "admin.listen", "a:1", "other than", "listen"]),
    # lists of names
    (MINIMAL + "allowed_hosts:\n- a\n- b:80\n", ["gate.yaml:6:", "allowed_hosts[1]", "without a port", "'b:80'"]),
    # tls, log
    (MINIMAL + "log:\n  level: loud\n", ["gate.yaml:5:", "log.level", "debug, info, warning, error", "'loud'"]),
    # upstreams
    ("upstreams:\n- {name: A, url: 'http://a/'}\n", ["gate.yaml:2:", "a-z0-9", "'A'"]),
    ("upstreams:\n- {name: '', url: 'http://a/'}\n", ["gate.yaml:2:", "a-z0-9", "''"]),
    ("upstreams:\n- {name: 1, url: 'http://a/'}\n", ["gate.yaml:2:", "text", "quotes", "'1'"]),
    (
        "upstreams:\n- {name: a, url: 'http://a/'}\n- {name: a, url: 'http://b/', match: {host: b}}\n",
        ["gate.yaml:3:", "upstreams[1].name", "'a'", "upstreams[0]"],
    ),
    (two("", ""), ["gate.yaml:3:", "upstreams[1]", "upstreams[0]", "same requests"]),
    (HTTPS + "tls: {key: README.md}\n", ["gate.yaml:4: upstreams[0].tls.key: expected a certificate beside it"]),
    (HTTPS + "tls: {certificate: README.md}\n", ["gate.yaml:4: upstreams[0].tls.certificate: expected a key"]),
    (
        two(", match: {host: A.b, prefix: /x}", ", match: {prefix: /x, host: a.b}"),
        ["gate.yaml:3:", "upstreams[1].match", "upstreams[0]", "same requests"],
    ),
    # numbers
    (MINIMAL + "index:\n  page_size: 0\n", ["gate.yaml:5:", "index.page_size", "from 1 to", "'0'"]),
]
# Each: line 4 of the file, and what the message must contain beside that place.
BAD_LINES: list[tuple[str, list[str]]] = [
    # the document
    ("# \x07", ["not YAML"]),
    ("log: !x {level: info}", ["log", "tag", "!x"]),
    # keys
    ("zzz: 1", ["zzz", "unknown key", "listen, tls"]),
    ("1: x", ["1:", "unknown key"]),
    # shapes
    ("index:", ["index", "mapping", "null"]),
    ("log: [info]", ["log", "mapping", "a list"]),
    ("allowed_hosts: a", ["allowed_hosts", "list", "'a'"]),
    ("listen: {host: a}", ["listen", "HOST:PORT", "a mapping"]),
    # the store
    ("store: {timeout: 1s}", ["store", "required key url"]),
    ("store: {url: 'http://a'}", ["store.url", "redis://", "'http://a'"]),
    ("store: {url: 'redis://:1'}", ["store.url", "a host", "'redis://:1'"]),
    ("store: {url: 'redis://a?db=1'}", ["store.url", "/NUMBER", "'redis://a?...'"]),
    ("store: {url: 'redis://u:pw@a:x'}", ["store.url", "'redis://...a:x'"]),
    ("store: {url: 'redis://u:p[w@a'}", ["store.url", "percent-encoded", "'redis://...a'"]),
    ("store: {url: 'redis://a', timeout: 0}", ["store.timeout", "more than 0"]),
    # addresses
    ("listen: 8080", ["listen", "HOST:PORT", "'8080'"]),
    ("listen: a:-1", ["listen", "65535", "'a:-1'"]),
    ("listen: '[::g]:80'", ["listen", "'[::g]:80'"]),
    ("listen: 256.0.0.1:80", ["listen", "'256.0.0.1:80'"]),
    (f"listen: 'unix:/{'é' * 60}'", ["listen", "unix:/PATH", "at most 107 bytes"]),
    ("listen: null", ["listen", "HOST:PORT", "null"]),
    ("listen: 1:30", ["listen", "HOST:PORT", "'1:30'"]),
    ("admin: {listen: 'a:70000'}", ["admin.listen", "65535"]),
    ("traces: {}", ["traces", "required key endpoint"]),
    ("traces: {endpoint: 'collector:4317'}", ["traces.endpoint", "http://", "'collector:4317'"]),
    (
        "traces: {endpoint: 'http://localhost:8080'}",
        ["traces.endpoint", "a collector", "where the gateway itself listens"],
    ),
    ("log: {access: on the whole}", ["log.access", "true or false", "'on the whole'"]),
    ("log: {format: xml}", ["log.format", "json, text", "'xml'"]),
    ("listen: 127.0.0.1:9090", ["127.0.0.1:9090"]),
    # variables
    ("listen: '${GONE}'", [" listen:", "GONE in the environment", "${GONE:-default}", "given '${GONE}'"]),
    ("listen: 'a${'", [" listen:", "${NAME} or ${NAME:-default}", "given 'a${'"]),
    ("listen: '${1A}'", [" listen:", "${NAME} or ${NAME:-default}", "given '${1A}'"]),
    ("listen: '${GONE-x}'", [" listen:", "${NAME} or ${NAME:-default}"]),
    # lists of names
    ("allowed_hosts: [80]", ["allowed_hosts[0]", "'80'"]),
    ("allowed_hosts: [\u212a]", ["allowed_hosts[0]"]),
    ("allowed_origins: [a.b]", ["https://", "'a.b'"]),
    ("allowed_origins: ['http://a/']", ["allowed_origins[0]"]),
    ("allowed_origins: ['http://A']", ["lower case", "'http://A'"]),
    ("allowed_origins: ['https://a:443']", ["default port"]),
    ("allowed_origins: ['null']", ["allowed_origins[0]", "'null'"]),
    # tls, log
    ("tls: {certificate: a}", ["tls", "required key", "key"]),
    ("tls: {key: a}", ["tls", "certificate"]),
    ("tls: {certificate: a, key: ''}", ["tls.key", "file", "''"]),
    ("log: {level: [info]}", ["log.level", "debug", "a list"]),
    # numbers
    ("index: {page_size: x}", ["index.page_size", "a whole number", "'x'"]),
    ("index: {page_size: 1.5}", ["a whole number", "'1.5'"]),
    (f"index: {{page_size: {'9' * 99}}}", ["to 1000000000"]),
    (f"index: {{page_size: {'9' * 5000}}}", ["index.page_size"]),
    ("limits: {connections_max: -1}", ["connections_max", "'-1'"]),
    ("index: {max_age: 5}", ["max_age", "ms, s, m, h or d", "'5'"]),
    ("index: {max_age: -1s}", ["max_age", "500ms", "'-1s'"]),
    ("index: {max_age: 1w}", ["ms, s, m, h or d", "'1w'"]),
    ("index: {max_age: no}", ["max_age", "500ms", "'no'"]),
    ("index: {max_age: .inf}", ["max_age", "500ms", "'.inf'"]),
    ("index: {max_age: 99999999h}", ["max_age", "at most a year (365d)", "'99999999h'"]),
    ("index: {max_age: }", ["max_age", "500ms", "null"]),
    ("limits: {header_bytes_max: 0}", ["limits.header_bytes_max", "64KiB", "'0'"]),
    ("limits: {header_bytes_max: -1}", ["64KiB", "'-1'"]),
    ("limits: {header_bytes_max: 4M}", ["B, KB, MB, GB", "KiB", "'4M'"]),
    ("index: {memory_bytes_max: 1.5 GB}", ["1.5GB", "'1.5 GB'"]),
    # With less, nothing could be relayed, or every peer would seem to have stopped.
    ("index: {memory_bytes_max: 4095}", ["index.memory_bytes_max", "1MiB or more", "'4095'"]),
    ("limits: {header_bytes_max: 1023B}", ["limits.header_bytes_max", "from 1KiB", "'1023B'"]),
    ("limits: {stall_timeout: 999ms}", ["limits.stall_timeout", "1s or more", "'999ms'"]),
    ("limits: {held_bytes_max: 1MiB}", ["limits.held_bytes_max", "inspected_body_bytes_max"]),
    ("index: {memory_bytes_max: 2000GiB}", ["1024GiB", "'2000GiB'"]),
]
# The same of a line of the upstream.
BAD_LINES_OF_UPSTREAM: list[tuple[str, list[str]]] = [
    ("<<: {}", ["upstreams[0].<<", "unknown key"]),
    ("match: {host: 'a:80'}", ["match.host", "without a port"]),
    ("match: {prefix: a}", ["match.prefix", "/research", "'a'"]),
    ("match: {prefix: /}", ["match.prefix", "'/'"]),
    ("match: {prefix: /a/}", ["match.prefix", "'/a/'"]),
    ("match: {prefix: /a/../b}", ["match.prefix", "'/a/../b'"]),
    ("match: {prefix: '/a?b'}", ["match.prefix", "'/a?"]),
    ("host: a/b", ["upstreams[0].host", "upstream, preserve", "'a/b'"]),
    ("host: a:0", ["upstreams[0].host", "65535", "'a:0'"]),
    ("identity_headers: ['a b']", ["identity_headers[0]", "'a b'"]),
    ("identity_headers: []", ["identity_headers", "at least one"]),
    ("add_headers: [via, x]", ["add_headers[1]", "x-forwarded, forwarded, via", "'x'"]),
    ("requests_max: 0", ["upstreams[0].requests_max", "from 1", "'0'"]),
    ("connect_timeout: 0s", ["connect_timeout", "more than 0", "'0s'"]),
    ("tls: {server_name: b}", ["upstreams[0].tls: expected an https url beside it"]),
    ("socket: run/x", ["upstreams[0].socket: expected the path of a Unix socket"]),
    ("health_check: {path: x}", ["upstreams[0].health_check.path: expected a path"]),
    ("health_check: {}", ["upstreams[0].health_check: the required key path is missing"]),
]
BAD += [(f"{MINIMAL}{line}\n", ["gate.yaml:4:", *parts]) for line, parts in BAD_LINES]
BAD += [(upstream(line), ["gate.yaml:4:", *parts]) for line, parts in BAD_LINES_OF_UPSTREAM]
BAD_URLS = [*("", "a", "127.0.0.1:3001/mcp", "/mcp", "ftp://a/", "http:///mcp", "http://", "http:a", "http://:80/")]
BAD_URLS += [*("http://fe80::1", "http://[::1]:070000", "ftp://127.0.0.1", "http://127.0.0.1:65536/mcp")]
BAD_URLS += ["http://u@a/", "http://a/?", "http://a/#", "http://a/b#c", "http://a:0/", "http://a:70000/"]
BAD_URLS += ["http://a:x/", "http://a b/", "http://a/b c", "http://[::1/", "http://::1/", "http://[1.2.3.4]/"]
BAD_URLS += [*("http://1.2.3/", "http://a\\b/", "http://\u0131/", "http://a/\u0131", " http://a/", "http://a/\n")]


@pytest.mark.parametrize("case", BAD, ids=lambda case: ascii(case[0].removeprefix(MINIMAL)[:50]))
def test_a_bad_file_is_refused_with_line_key_given_and_allowed(case: tuple[str, list[str]]) -> None:
    text, parts = case
    message = refusal(text)
    assert [part for part in parts if part not in message] == []
    assert message.isprintable() or "\n" in message
    assert all(re.match(r"gate\.yaml:[0-9]+: ", line) for line in message.splitlines()), message


@pytest.mark.parametrize("url", BAD_URLS)
def test_a_bad_url_is_refused(url: str) -> None:
    message = refusal("upstreams:\n- name: a\n  url: " + yaml.safe_dump(url, default_style='"'))
    assert message.startswith("gate.yaml:3: upstreams[0].url: expected ") and "; given " in message


def test_a_secret_in_a_url_is_not_repeated() -> None:
    assert "hunter2" not in refusal(MINIMAL + "store: {url: 'redis://me:hunter2@a/x'}\n")
    urls = ("https://me:hunter2@a/", "https://me:hun/ter2@a/", "https://a/?key=hunter2", "https://a/#key=hunter2")
    for url in (*urls, "https://a/#?hunter2", "https://me:hun#ter2@a/", "me:hunter2@a/mcp", "me:hun/ter2@a/mcp"):
        for message in (refusal(upstream("").replace("http://127.0.0.1:3001/mcp", repr(url))), flags(url)):
            assert "ter2" not in message
            assert "a/" in message


def places(message: str) -> str:
    """The line and the key of each fault: "1 listen, 4 index.max_age"."""
    found = (line.split(": ")[:2] for line in message.splitlines())
    return ", ".join(f"{place.rpartition(':')[2]} {key}" for place, key in found)


def test_every_fault_is_told_at_once() -> None:
    """Text that no reader takes, wrong types, shapes, keys, what is missing, and what clashes."""
    faulty = (
        "listen: 1\nindx: {}\nindex:\n  max_age: 1\n  page_size: many\n  pages_max: 0\n"
        "upstreams:\n- name: a\n- {name: b, url: 'http://b/', host: [], match: x}\nallowed_hosts: a\n"
        "limits: {connections_max: true, held_bytes_max: 1MiB}\nadmin: {listen: 127.0.0.1:8080}\n"
    )
    assert places(refusal(faulty)) == (
        "1 listen, 2 indx, 4 index.max_age, 5 index.page_size, 6 index.pages_max, 8 upstreams[0], "
        "9 upstreams[1].host, 9 upstreams[1].match, 10 allowed_hosts, 11 limits.connections_max, 12 admin.listen"
    )


def test_a_clash_is_told_beside_other_faults_but_not_of_a_faulty_value() -> None:
    """The default of such a one stands for it meanwhile, which nobody has given."""
    twice = "upstreams:\n- {name: a, url: 'http://a/'}\n- {name: a, url: 'http://a/'}\nzzz: 1\n"
    assert places(refusal(twice)) == "4 zzz, 3 upstreams[1].name, 3 upstreams[1]"
    faulty = refusal(MINIMAL + "listen: 127.0.0.1:9090\nadmin: {listen: x}\n")
    assert places(faulty) == "5 admin.listen"


# ---- variables ----


def test_a_variable_has_the_type_of_its_key(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"HOST": "a.example", "PORT": "81", "NAME": "123", "SIZE": "4096"}.items():
        monkeypatch.setenv(f"GATE_{name}", value)
    text = (
        "upstreams: [{name: '${GATE_NAME}', url: 'http://${GATE_HOST}:${GATE_PORT}/'}]\n"
        "index:\n  page_size: ${GATE_PORT}\n  tasks_max: '${GATE_PORT}0'\n"
        "limits:\n  header_bytes_max: ${GATE_SIZE}\n  drain_timeout: ${GATE_GONE:-3s}\n"
        "log:\n  access: ${GATE_GONE:-true}\nallowed_hosts:\n- ${GATE_HOST}\n"
        "admin:\n  listen: ${GATE_GONE:-[::1]:0}\n"
    )
    config = parse(text, "gate.yaml")
    assert (config.upstreams[0].name, config.upstreams[0].url) == ("123", Url("http", "a.example", 81, "/"))
    assert (config.index.page_size, config.index.tasks_max) == (81, 810)
    assert (config.limits.header_bytes_max, config.limits.drain_timeout) == (4096, 3.0)
    assert (config.log.access, config.allowed_hosts) == (True, ("a.example",))
    assert config.admin is not None and config.admin.listen == Address("::1", 0)
    for value, size in (("7", 7), ("", 8)):
        monkeypatch.setenv("GATE_PORT", value)
        assert parse(MINIMAL + "index:\n  page_size: ${GATE_PORT:-8}\n", "gate.yaml").index.page_size == size


def test_a_variable_stands_for_text_and_never_for_yaml(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GATE_NAME", "x, url: 'http://b/'}, {name: y")
    message = refusal("upstreams: [{name: '${GATE_NAME}', url: 'http://a/'}]")
    assert places(message) == "1 upstreams[0].name"


def test_no_error_shows_the_value_of_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether the value is wrong by itself, or beside another."""
    monkeypatch.setenv("GATE_HOST", "hunter2")
    monkeypatch.setenv("GATE_NAME", "127.0.0.1:7777")
    faulty = (
        "listen: '${GATE_NAME}'\nadmin: {listen: '${GATE_NAME}'}\nlog: {level: '${GATE_HOST}'}\n"
        "index: {page_size: '${GATE_HOST}'}\n"
        "upstreams: [{name: '${GATE_HOST}', url: 'http://a/'}, {name: '${GATE_HOST}', url: 'http://${GATE_NAME}/'}]\n"
    )
    message = refusal(faulty)
    assert "hunter2" not in message and "7777" not in message
    assert message.count("given '${GATE_HOST}'") == 3 and "'http://${GATE_NAME}/'" in message


@pytest.mark.parametrize("end", ["", "\n", "\r\n"])
def test_a_value_may_stand_in_a_file(tmp_path: Path, end: str) -> None:
    (tmp_path / "secret").write_bytes(b"p#w: ${x}" + end.encode())
    (tmp_path / "size").write_bytes(b"7" + end.encode())
    file = tmp_path / "gate.yaml"
    text = MINIMAL + "index:\n  page_size: ${file:size}\nlog: {audit: '${file:-true}'}\n"
    file.write_text(text)
    config = load(file)
    assert (config.index.page_size, config.log.audit) == (7, True)
    (tmp_path / "size").write_text("8\n")
    assert load(file).index.page_size == 8, "it is read again"
    file.write_text(MINIMAL + "log: {level: '${file:secret}'}\n")
    with pytest.raises(ConfigError) as raised:
        load(file)
    assert "p#w" not in str(raised.value) and "${file:" in str(raised.value)


FILES = {
    "missing": "No such file",
    "folder": "no file",
    "large": "larger",
    "bytes": "no UTF-8",
    "pipe": "no file",
    "two ends": "HOST:PORT",  # only one line end is cut
}


@pytest.mark.parametrize(("name", "why"), FILES.items())
def test_a_file_of_a_value_that_cannot_be_read_is_a_fault_that_names_it(tmp_path: Path, name: str, why: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "large").write_bytes(bytes(2**24 + 1))
    (tmp_path / "bytes").write_bytes(b"hunter\xff2")
    (tmp_path / "two ends").write_bytes(b"127.0.0.1:1\n\n")
    os.mkfifo(tmp_path / "pipe")
    file = tmp_path / "gate.yaml"
    file.write_text(MINIMAL + f"listen: ${{file:{name}}}\n")
    with pytest.raises(ConfigError) as raised:
        load(file)
    assert name in str(raised.value) and why in str(raised.value)
    assert "hunter" not in str(raised.value)


# ---- what a reload cannot change ----


def test_what_a_reload_cannot_change_is_told_with_its_line() -> None:
    running = parse(MINIMAL, "running.yaml")
    with pytest.raises(ConfigError) as caught:
        changed = "admin: null\nlisten: 127.0.0.1:1\nindex: {page_size: 0}\nstore: {url: 'redis://a'}\n"
        parse(MINIMAL + changed, "gate.yaml", in_force=running)
    assert places(str(caught.value)) == "6 index.page_size, 5 listen, 4 admin, 7 store"
    with pytest.raises(ConfigError, match="traces cannot change while the gateway runs"):
        parse(MINIMAL + "traces: {endpoint: 'http://a:4318'}\n", "gate.yaml", in_force=running)
    assert "cannot change while the gateway runs" in str(caught.value)
    assert parse(MINIMAL + "index: {page_size: 1}\n", "gate.yaml", in_force=running).index.page_size == 1
    running = parse(MINIMAL + "listen: 127.0.0.1:1\n", "running.yaml")
    with pytest.raises(ConfigError, match=r"gate\.yaml:1: listen: .*the default"):  # a key that is gone
        parse(MINIMAL, "gate.yaml", in_force=running)


def test_a_long_value_is_cut_short() -> None:
    assert len(refusal(upstream("match: {prefix: " + "x" * 100_000 + "}"))) < 500


@given(st.text(alphabet="&*a:{}[],-?!|>'\"\\%@`#<=~ \n\t01xU\x00\ufeff", max_size=40))
def test_any_text_is_a_configuration_or_a_config_error(text: str) -> None:
    for tried in (text, MINIMAL + "listen: " + text, MINIMAL + "index: {page_size: !!" + text):
        try:
            assert isinstance(parse(tried, "gate.yaml"), Config)
        except ConfigError as error:
            assert str(error).startswith("gate.yaml:")


# What good values become.


def test_defaults() -> None:
    config = parse(MINIMAL, "gate.yaml")
    research = Upstream(name="research", url=Url("http", "127.0.0.1", 3001, "/mcp"))
    assert config == Config(upstreams=(research,))
    assert config.listen == Address("127.0.0.1", 8080)
    assert config.admin is not None
    assert config.admin.listen == Address("127.0.0.1", 9090)


# A line with `%s`, what stands there, and what its innermost key becomes.
VALUES: list[tuple[str, str, Any]] = [
    *(("listen: %s", text, value) for text, value in (
        ("0.0.0.0:0", Address("0.0.0.0", 0)), ("LocalHost:65535", Address("localhost", 65535)),
        ("'[0:0::1]:8080'", Address("::1", 8080)),
    )),
    *(("index: {max_age: %s}", text, value) for text, value in (
        ("500ms", 0.5), ("1s", 1.0), ("1.5s", 1.5), ("10m", 600.0), ("1h", 3600.0), ("0", 0.0), ("0s", 0.0),
    )),
    *(("limits: {inspected_event_bytes_max: %s}", text, value) for text, value in (
        ("64KiB", 1 << 16), ("1024GiB", 1 << 40), ("10MB", 10**7), ("4096", 4096), ("1024B", 1024), ("2KB", 2000),
        ("1.5GB", 1_500_000_000), ("0.5GiB", 1 << 29), ("1500.25MB", 1_500_250_000),
    )),
    # Hosts and origins have the form that headers have.
    ("allowed_hosts: %s", "[MCP.example, '[0:0::1]']", ("mcp.example", "[::1]")),
    ("allowed_origins: %s", "['http://[::1]:81', 'vscode-webview://x1']", ("http://[::1]:81", "vscode-webview://x1")),
    ("admin: %s", "null", None), ("tls: %s", "null", None), ("index: %s", "{}", settings.IndexLimits()),
    ("limits: %s", "{}", settings.Limits()),
]  # fmt: skip


@pytest.mark.parametrize(("line", "text", "value"), VALUES)
def test_values(line: str, text: str, value: Any) -> None:
    read: Any = parse(MINIMAL + line % text + "\n", "gate.yaml")
    for key in re.findall("[a-z_]+(?=:)", line):
        read = getattr(read, key)
    assert (read, type(read)) == (value, type(value))


@pytest.mark.parametrize(
    ("text", "url", "authority"),
    [
        ("http://a", Url("http", "a", 80, "/"), "a"),
        ("https://A.b/MCP/", Url("https", "a.b", 443, "/MCP/"), "a.b"),
        ("HTTPS://a:443/", Url("https", "a", 443, "/"), "a"),
        ("https://a:80/x%2Fy//z", Url("https", "a", 80, "/x%2Fy//z"), "a:80"),
        ("http://[::1]:3001/mcp", Url("http", "::1", 3001, "/mcp"), "[::1]:3001"),
        ("http://my_service:1/", Url("http", "my_service", 1, "/"), "my_service:1"),
    ],
)
def test_urls(text: str, url: Url, authority: str) -> None:
    read = parse(MINIMAL.replace("http://127.0.0.1:3001/mcp", text), "gate.yaml").upstreams[0].url
    assert read == url
    assert read.authority == authority
    assert str(Address("::1", 80)) == "[::1]:80"


def durations(kind: Any) -> list[str]:
    """The keys of a section whose value is a duration."""
    types = (Duration, DurationOrZero, Stall, Duration | None)
    return [field.name for field in msgspec.structs.fields(kind) if field.type in types]


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (settings.HealthCheck, upstream("health_check: {path: /, %s: %s}")),
        (Upstream, upstream("%s: %s")),
        (settings.IndexLimits, MINIMAL + "index: {%s: %s}\n"),
        (settings.Limits, MINIMAL + "limits: {%s: %s}\n"),
        (settings.GuardLimits, MINIMAL + "guards: {%s: %s}\n"),
        (settings.StoreSettings, MINIMAL + "store: {url: 'redis://a', %s: %s}\n"),
    ],
)
def test_a_duration_is_at_most_a_year(kind: Any, text: str) -> None:
    """With `max_age: 99999999h` a query got an empty reply: no date was so long ago."""
    assert durations(kind)
    for key in durations(kind):
        assert parse(text % (key, "8760h"), "gate.yaml") == parse(text % (key, "365d"), "gate.yaml")
        for above in ("8760.001h", "31536001s", "366d"):
            assert f"at most a year (365d); given '{above}'" in refusal(text % (key, above))


GOOD = [
    *(MINIMAL + key + ": 0}\n" for key in ("index: {max_age", "index: {full_crawl_interval")),
    *(MINIMAL + key + ": 0}\n" for key in ("limits: {drain_timeout", "limits: {keepalive_timeout")),
    MINIMAL + "listen: a:0\nadmin: {listen: 'a:0'}\n",  # two ports
    two(", match: {host: a}", ", match: {host: a, prefix: /b}"),
    two("", ", match: {prefix: /b}"),
    *(upstream(f"host: '{host}'") for host in ("upstream", "preserve", "a.b", "[::1]:80")),
]


@pytest.mark.parametrize("text", GOOD)
def test_what_is_accepted(text: str) -> None:
    parse(text, "gate.yaml")


def test_an_alias_stands_for_its_value() -> None:
    text = two(", identity_headers: &ids [A]", ", match: {host: b}, identity_headers: *ids")
    assert [each.identity_headers for each in parse(text, "gate.yaml").upstreams] == [("A",), ("A",)]


# Files and flags.


def test_load_resolves_tls_paths_against_the_file(tmp_path: Path) -> None:
    path = tmp_path / "gate.yaml"
    key = tmp_path / "key.pem"
    path.write_text("\ufeff" + MINIMAL + f"tls: {{certificate: tls/cert.pem, key: {key}}}\n", "utf-8")
    with pytest.raises(ConfigError) as caught:
        load(path)
    assert places(str(caught.value)) == "4 tls.certificate, 4 tls.key"
    assert str(caught.value).startswith(f"{path}:4: ")
    assert "expected a file that can be read; given 'tls/cert.pem': No such file" in str(caught.value)
    (tmp_path / "tls").mkdir()
    (tmp_path / "tls" / "cert.pem").touch()
    key.touch()
    assert load(path).tls == settings.Tls(NamedFile(tmp_path / "tls" / "cert.pem"), NamedFile(key))


def test_load_names_the_line_that_is_no_utf_8(tmp_path: Path) -> None:
    path = tmp_path / "gate.yaml"
    path.write_bytes(b"# a\n# \xff\n")
    with pytest.raises(ConfigError, match=re.escape(f"{path}:2: ") + ".*UTF-8"):
        load(path)


def flags(url: str, listen: str | None = None, admin: str | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        for_upstream(url, listen, admin)
    return str(caught.value)


def test_flags_equal_a_file_of_one_upstream() -> None:
    file = parse("upstreams: [{name: upstream, url: 'http://a:1/mcp'}]", "gate.yaml")
    assert for_upstream("http://a:1/mcp", None, None) == file
    config = for_upstream("http://a:1/mcp", "[::1]:0", "localhost:1")
    assert config.listen == Address("::1", 0)
    assert config.admin is not None
    assert config.admin.listen == Address("localhost", 1)


def test_flags_are_named_in_errors() -> None:
    good = "http://a/"
    assert len(flags("a", "b", "c").splitlines()) == 3
    assert re.match(r"--admin: .*other than", flags(good, "a:1", "a:1"))
    assert re.match(r"--admin: .*other than", flags(good, None, "127.0.0.1:8080"))
    assert re.match(r"--listen: .*other than", flags(good, "127.0.0.1:9090"))


# The example.


def test_the_example_equals_the_defaults() -> None:
    assert load(EXAMPLE) == parse(MINIMAL, "gate.yaml")


def hidden(kind: Any, shown: Any, path: str) -> list[str]:
    """The paths of the fields of `kind` that `shown`, the example's plain value, does not have."""
    parts: list[tuple[Any, Any, str]] = []
    missing = []
    if isinstance(shown, dict) and isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        fields = msgspec.structs.fields(kind)
        missing = [f"{path}.{field.name}" for field in fields if field.name not in shown]
        parts = [(field.type, shown.get(field.name), f"{path}.{field.name}") for field in fields]
    elif isinstance(shown, list) and get_origin(kind) is tuple:
        parts = [(get_args(kind)[0], item, path + "[]") for item in shown]
    else:  # a union, or an annotated type
        parts = [(part, shown, path) for part in get_args(kind)]
    return missing + [each for part in parts for each in hidden(*part)]


def test_the_example_shows_every_key() -> None:
    """All but the insides of what is off by default, such as `tls`: its line's comment shows them."""
    text = EXAMPLE.read_text("utf-8")
    assert hidden(Config, yaml.safe_load(text), "$") == []
    without = re.sub(r"(?m)^( +)(page_size|prefix|requests_max): .*$", r"\1# \2: 1", text)
    missing = ["$.upstreams[].requests_max", "$.upstreams[].match.prefix", "$.index.page_size"]
    assert hidden(Config, yaml.safe_load(without), "$") == missing, "this check must see what is missing"


def test_the_example_explains_every_key() -> None:
    lines = EXAMPLE.read_text("utf-8").splitlines()
    assert [line for line in lines if re.match(r"[ -]*[a-z_]+: *[^ #]", line) and " # " not in line] == []
