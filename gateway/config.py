"""The configuration.

In: YAML text and the environment, or the command line's flags. Out: frozen structs with every default filled in, or
one `ConfigError` with a line for each fault: the file and line (or the flag), the key, what was given, what is
allowed. Always: all faults are told at once. No error shows the value of a variable. The only I/O is to read the file,
and to check that the files it names can be read, or written.

The structs are the specification. The type of a field carries the reader of its values. `_Document` walks the YAML and
the structs together, and remembers the place of each value. `_clashes` finds values that are wrong only together.
"""

import difflib
import ipaddress
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Final, NoReturn, TypeAlias, TypeVar, get_args, get_origin

import msgspec
import yaml
from msgspec import Struct

VALUES_MAX: Final = 10_000  # aliases can make billions of values from a few lines
GIVEN_CHARS_MAX: Final = 80  # of a value that an error repeats
COUNT_MAX: Final = 1_000_000_000
RATE_MAX: Final = 1_000_000
LEVELS: Final = ("debug", "info", "warning", "error")
FIXED: Final = ("listen", "tls", "admin", "traces", "store")  # keys that a reload cannot change

ANY_ADDRESS: Final = ("0.0.0.0", "::")  # all of this machine's
_LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")
_VARIABLE: Final = re.compile(r"\$\{(?:([A-Za-z_][A-Za-z0-9_]*)(:-[^}]*)?\})?")
_PORTS: Final = {"http": 80, "https": 443}
_SOCKET_BYTES_MAX: Final = 107  # sun_path has 108
_SECONDS: Final = {"ms": 0.001, "s": 1, "m": 60, "h": 3600}
_BYTES: Final = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


class ConfigError(Exception):
    """The configuration cannot be used. Each of `args` is one fault, for an operator to read, on one line."""

    def __str__(self) -> str:
        return "\n".join(self.args)


class Address(Struct, frozen=True):
    """Where to listen: a lower-case name or an IP address (IPv6 without brackets), and a port (0 is any); or a path.

    The host `::` is every address, of IPv4 too. `path` is that of a Unix socket; the host is then empty, the port 0.
    """

    host: str
    port: int
    path: str = ""

    def __str__(self) -> str:
        if self.path:
            return f"unix:{self.path}"
        return f"{bracketed(self.host)}:{self.port}"


class Url(Struct, frozen=True):
    """An upstream or a collector: `http` or `https`, a host as in `Address`, a port (1 to 65535), a path.

    An upstream's path is only printed: requests keep their own paths.
    """

    scheme: str
    host: str
    port: int
    path: str

    @property
    def authority(self) -> str:
        """`host[:port]` as in a `Host` header: IPv6 in brackets, no port where it is the scheme's own."""
        return bracketed(self.host) + ("" if self.port == _PORTS[self.scheme] else f":{self.port}")

    def __str__(self) -> str:
        return f"{self.scheme}://{self.authority}{self.path}"


# Readers: a YAML value in, the value of the field out. A ValueError says what is allowed.


def bracketed(host: str) -> str:
    """A host as in a URL."""
    return f"[{host}]" if ":" in host else host


def _match(pattern: str, value: object) -> re.Match[str] | None:
    return re.fullmatch(pattern, value) if isinstance(value, str) else None


def _host_port(value: object) -> tuple[str | None, int | None]:
    """`HOST` or `HOST:PORT`, the host in lower case, IPv6 without brackets. The host is None if anything is wrong."""
    # No `%`: a `Host` has no zone.
    found = _match(r"(?:\[([^%]+)\]|([A-Za-z0-9._-]+))(?::([0-9]{1,5}))?", value)
    if not found or int(found[3] or 0) > 65535:
        return None, None
    host, port = (found[1] or found[2]).lower(), int(found[3]) if found[3] else None
    try:
        if found[1]:
            host = str(ipaddress.IPv6Address(host))
        elif host.rpartition(".")[2].isdigit():
            ipaddress.IPv4Address(host)
    except ValueError:
        return None, None
    return (None if "" in host.split(".") else host), port


def _read_address(value: object) -> Address:
    if isinstance(value, str) and value.startswith("unix:") and _is_socket(path := value.removeprefix("unix:")):
        return Address("", 0, path)
    host, port = _host_port(value)
    if host is None or port is None:
        raise ValueError(
            "HOST:PORT such as 127.0.0.1:8080 or [::1]:8080, the port from 0 to 65535; or unix:/PATH, "
            f"the path of at most {_SOCKET_BYTES_MAX} bytes"
        )
    return Address(host, port)


def _is_socket(path: object) -> bool:
    """Whether a path can be that of a Unix socket."""
    return bool(_match(r"/[^\0\ud800-\udfff]+", path)) and len(str(path).encode()) <= _SOCKET_BYTES_MAX


def _read_socket(value: object) -> object:
    if not _is_socket(value):
        raise ValueError(f"the path of a Unix socket, from / on, of at most {_SOCKET_BYTES_MAX} bytes")
    return value


def _read_url(value: object) -> Url:
    found = _match(r"([Hh][Tt][Tt][Pp][Ss]?)://([^/]*)(/(?:(?![?#\\])[!-~])*)?", value)
    host, port = _host_port(found[2]) if found else (None, None)
    if not found or host is None or port == 0:
        raise ValueError("http:// or https://, a host, perhaps a port and a path; no user, query or fragment")
    scheme = found[1].lower()
    return Url(scheme, host, port or _PORTS[scheme], found[3] or "/")


def _read_host_name(value: object) -> str:
    host, port = _host_port(value)
    if host is None or port is not None:
        raise ValueError("a Host name such as mcp.example.com, 10.0.0.1 or [::1], without a port")
    return bracketed(host)


def _read_public_url(value: object) -> object:
    if value is False or value == "off":  # a bare `off` is YAML's false
        return "off"
    authority = r"([A-Za-z0-9._-]+|\[[0-9A-Fa-f:]+\])(:[0-9]{1,5})?"
    if not _match(rf"https?://{authority}(/[A-Za-z0-9._~!$&'()*+,;=:@%-]+)*", value):
        raise ValueError(
            "the gateway's own address as its clients use it, such as https://mcp.example or "
            "https://mcp.example/research; or off"
        )
    return value


def _read_store_url(value: object) -> object:
    found = _match(r"rediss?://(?:[^\s/?#@\[\]]*@)?([^/?#@]*)(?:/[0-9]{1,4})?", value)
    host, port = _host_port(found[1]) if found else (None, None)
    if host is None or port == 0:
        raise ValueError(
            "redis:// or rediss://, perhaps user:password@ (percent-encoded), a host, perhaps a port and /NUMBER"
        )
    return value


def _read_host_rule(value: object) -> object:
    host, port = _host_port(value)
    if host is None or port == 0:
        raise ValueError("upstream, preserve, or a fixed host[:port], the port from 1 to 65535")
    return value


def _read_file(value: object) -> Path:
    if not isinstance(value, str) or not value or "\0" in value:
        raise ValueError("the name of a file")
    return Path(value)


def _read_size(value: object) -> int:
    found = _match(f"([0-9]{{1,13}})({'|'.join(_BYTES)})", value)
    size = int(found[1]) * _BYTES[found[2]] if found else value
    if type(size) is not int or not 2**10 <= size <= 2**40:
        raise ValueError(f"a size such as 64KiB, in {', '.join(_BYTES)} or plain bytes, from 1KiB to 1024GiB")
    return size


def _read_memory(value: object) -> int:
    if (size := _read_size(value)) < 2**20:
        raise ValueError("a size of 1MiB or more")
    return size


def _read_duration(value: object) -> float:
    bare_zero = type(value) is int and value == 0
    found = _match(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)(ms|s|m|h)", "0s" if bare_zero else value)
    if not found:
        raise ValueError("a duration such as 500ms, 1s, 10m or 1h, its unit one of ms, s, m or h")
    return float(found[1]) * _SECONDS[found[2]]


def _read_positive(value: object) -> float:
    if seconds := _read_duration(value):
        return seconds
    raise ValueError("a duration of more than 0, such as 500ms, 1s, 10m or 1h")


def _read_stall(value: object) -> float:
    if (seconds := _read_duration(value)) < 1:
        raise ValueError("a duration of 1s or more: a shorter stall does not show that a peer has stopped")
    return seconds


def _read_count(value: object) -> int:
    if type(value) is not int or not 1 <= value <= COUNT_MAX:
        raise ValueError(f"a whole number from 1 to {COUNT_MAX}")
    return value


def _read_rate(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= RATE_MAX:
        raise ValueError(f"a number of more than 0, such as 0.5 or 10, at most {RATE_MAX}")
    return float(value)


def _read_switch(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError("true or false")
    return value


def _matching(pattern: str, allowed: str) -> Callable[[object], object]:
    def read(value: object) -> object:
        if not _match(pattern, value):
            raise ValueError(allowed)
        return value

    return read


def _one_of(*choices: str) -> Callable[[object], object]:
    return _matching("|".join(choices), "one of " + ", ".join(choices))


# The types of fields.
_T = TypeVar("_T")
AtLeastOne: TypeAlias = Annotated[tuple[_T, ...], "at least one"]
Listen = Annotated[Address, _read_address]
Duration = Annotated[float, _read_positive]  # seconds
DurationOrZero = Annotated[float, _read_duration]  # seconds
Stall = Annotated[float, _read_stall]  # seconds
Size = Annotated[int, _read_size]  # bytes
Memory = Annotated[int, _read_memory]  # bytes
Count = Annotated[int, _read_count]
Rate = Annotated[float, _read_rate]  # a second
Switch = Annotated[bool, _read_switch]
File = Annotated[Path, _read_file]
LogFile = Annotated[str, _matching(r"[^\0]+", "the name of a file")]  # the file need not exist yet
Socket = Annotated[str, _read_socket]
Target = Annotated[str, _matching(r"/[!-\"$-~]*", "a path such as /healthz, perhaps with a query")]
HostName = Annotated[str, _read_host_name]  # as in a Host header: lower case, IPv6 in brackets, no port
HostRule = Annotated[str, _read_host_rule]
Name = Annotated[str, _matching("[a-z0-9][a-z0-9_-]*", "text like [a-z0-9][a-z0-9_-]* (a number in quotes)")]
HeaderName = Annotated[str, _matching(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+", "a header's name such as X-Org")]
Level = Annotated[str, _one_of(*LEVELS)]
Format = Annotated[str, _one_of("json", "text")]
Added = Annotated[str, _one_of("x-forwarded", "forwarded", "via")]
Prefix = Annotated[
    str,
    _matching(
        r"(?:/(?!\.\.?(?:/|$))[A-Za-z0-9._~!$&'()*+,;=:@%-]+)+",
        "a path such as /research, without . or .. in it or / at its end",
    ),
]
Origin = Annotated[
    str,
    _matching(
        r"(?!http:.*:80$|https:.*:443$)[a-z][a-z0-9+.-]*://([a-z0-9._-]+|\[[0-9a-f:]+\])(:[0-9]{1,5})?",
        "an Origin as browsers send it, such as https://app.example: lower case, no path, no default port",
    ),
]
PublicUrl = Annotated[str, _read_public_url]
StoreUrl = Annotated[str, _read_store_url]


# The sections. config.example.yaml says what each key means.


class Tls(Struct, frozen=True):
    """The certificate of the listener. The configuration's folder is already in front of relative names."""

    certificate: File
    key: File


class Admin(Struct, frozen=True):
    """The listener for operators."""

    listen: Listen = Address("127.0.0.1", 9090)


class Log(Struct, frozen=True):
    """What is logged, and how."""

    level: Level = "info"
    format: Format = "json"
    access: Switch = False
    audit: Switch = False


class Match(Struct, frozen=True):
    """The requests of an upstream: those to this host, with this prefix. None stands for every host, every path.

    A prefix ends at a `/` or at the end of the path. If a request matches several upstreams, a host goes before none,
    then the longer prefix goes first. No two upstreams have the same pair, so this decides every request.
    """

    host: HostName | None = None
    prefix: Prefix | None = None


class UpstreamTls(Struct, frozen=True, kw_only=True):
    """TLS with an https upstream. None means: the system's authorities (`ca`); no certificate of the gateway's; the
    host of `url` (`server_name`).
    """

    ca: File | None = None
    certificate: File | None = None
    key: File | None = None
    server_name: HostName | None = None


class HealthCheck(Struct, frozen=True, kw_only=True):
    """A GET to the upstream, at intervals."""

    path: Target
    interval: Duration = 10.0
    timeout: Duration = 5.0


class Upstream(Struct, frozen=True, kw_only=True):
    """One MCP server. `host` is the `Host` to send: "upstream" is `url.authority`, "preserve" is the client's."""

    name: Name
    url: Annotated[Url, _read_url]
    socket: Socket | None = None
    tls: UpstreamTls = UpstreamTls()
    health_check: HealthCheck | None = None
    host: HostRule = "upstream"
    match: Match = Match()
    public_url: PublicUrl | None = None
    identity_headers: AtLeastOne[HeaderName] | None = None
    add_headers: tuple[Added, ...] = ()
    connect_timeout: Duration = 5.0
    response_timeout: DurationOrZero = 600.0  # 0: no limit
    idle_timeout: DurationOrZero = 4.0
    requests_max: Count = 10_000


class IndexLimits(Struct, frozen=True, kw_only=True):
    """Limits and freshness of the task indexes (DESIGN 6 and 7)."""

    page_size: Count = 100
    max_age: DurationOrZero = 1.0
    full_crawl_interval: DurationOrZero = 60.0  # 0: every refresh is a full crawl
    tasks_max: Count = 1_000_000
    pages_max: Count = 200_000
    memory_bytes_max: Memory = 2**30
    sessions_max: Count = 10_000
    idle_timeout: Duration = 3600.0
    crawl_timeout: Duration = 30.0


class Limits(Struct, frozen=True, kw_only=True):
    """Limits of what clients and upstreams may send, and for how long."""

    inspected_body_bytes_max: Size = 4 * 2**20
    inspected_event_bytes_max: Size = 4 * 2**20
    held_bytes_max: Memory = 256 * 2**20
    header_bytes_max: Size = 64 * 2**10
    connections_max: Count = 10_000
    request_timeout: Duration = 30.0
    stall_timeout: Stall = 60.0
    keepalive_timeout: DurationOrZero = 75.0
    shutdown_delay: DurationOrZero = 0.0
    drain_timeout: DurationOrZero = 10.0


class StoreSettings(Struct, frozen=True, kw_only=True):
    """What replicas share: a Redis or Valkey, and how long a query waits for it."""

    url: StoreUrl
    timeout: Duration = 0.1


class GuardLimits(Struct, frozen=True, kw_only=True):
    """Limits of what clients may ask of tasks. None: no limit."""

    task_operations_per_second: Rate | None = None
    task_operations_burst: Count = 20
    task_ttl_max: Duration | None = None
    identities_max: Count = 10_000


class Traces(Struct, frozen=True, kw_only=True):
    """Where spans go: a collector that takes OTLP over HTTP. The path `/` stands for `/v1/traces`."""

    endpoint: Annotated[Url, _read_url]


class Config(Struct, frozen=True, kw_only=True):
    """The configuration. Names of upstreams are unique, and so are their matches."""

    listen: Listen = Address("127.0.0.1", 8080)
    tls: Tls | None = None
    allowed_hosts: tuple[HostName, ...] = ()
    allowed_origins: tuple[Origin, ...] = ()
    admin: Admin | None = Admin()
    log: Log = Log()
    traces: Traces | None = None
    upstreams: AtLeastOne[Upstream]
    index: IndexLimits = IndexLimits()
    limits: Limits = Limits()
    guards: GuardLimits = GuardLimits()
    store: StoreSettings | None = None


class StdioLog(Struct, frozen=True):
    """What is logged for a server on stdio, how, and where: to a file, or on standard error."""

    level: Level = "warning"
    format: Format = "json"
    file: LogFile | None = None


class StdioConfig(Struct, frozen=True, kw_only=True):
    """The configuration of `taskgate stdio`."""

    log: StdioLog = StdioLog()
    index: IndexLimits = IndexLimits()
    limits: Limits = Limits()


Clash: TypeAlias = tuple[tuple[str, ...], str]
"""Values that are wrong only together: the paths to blame, best first, and the problem."""

_FAULTY: Final = object()  # stands for a value with a fault; the fault is noted


class _Document:
    """A YAML document on its way to a `Config`: the place of each value, how it was given, and all faults."""

    def __init__(self, source: str, folder: Path, opens: bool) -> None:
        self.source = source
        self.folder = folder
        self.opens = opens  # whether the files that it names must be readable
        self.places: dict[str, str] = {}
        self.given: dict[str, str] = {}
        self.faults: list[str] = []

    def place(self, line: int, path: str = "") -> str:
        return f"{self.source}:{line}: {path}".removesuffix(": ")

    def fault(self, place: str, problem: str) -> object:
        text = f"{place}: {problem}"
        self.faults.append(text if text.isprintable() else repr(text)[1:-1])
        return _FAULTY

    def fail(self, place: str, problem: str) -> NoReturn:
        self.fault(place, problem)
        raise ConfigError(*self.faults)

    def compose(self, text: str, least: str = "") -> yaml.MappingNode:
        """The root node of a YAML text, which must be a mapping. `least` ends the error for an empty text."""
        try:
            root = yaml.compose(text, Loader=yaml.SafeLoader)
        except RecursionError:
            self.fail(self.place(1), "not YAML: nested too deeply")
        except (yaml.YAMLError, ValueError, OverflowError) as error:  # a ValueError: the escape "\\UFFFFFFFF"
            mark = getattr(error, "problem_mark", None)
            line = mark.line if mark else text.count("\n", 0, getattr(error, "position", 0))
            words = getattr(error, "problem", None) or str(error).partition("\n")[0]
            self.fail(self.place(line + 1), f"not YAML: {words}")
        if root is None or root.value == "":
            self.fail(self.place(1), f"the file is empty; expected a mapping{least}")
        if not isinstance(root, yaml.MappingNode):
            self.fail(self.place(root.start_mark.line + 1), f"expected a mapping; given {_given(root)}")
        return root

    def value(self, kind: Any, node: yaml.Node, path: str, line: int) -> object:
        """The value of a field of type `kind`; `_FAULTY` if it has a fault, which is noted.

        The types have no cycle. So an alias that contains itself ends where they do.
        """
        place = self.place(line, path)
        self.places[path], self.given[path] = place, _given(node)
        if len(self.places) > VALUES_MAX:
            self.fail(place, f"more than {VALUES_MAX} values, those of aliases counted each time")
        if node.tag not in yaml.SafeLoader.yaml_constructors:
            return self.fault(place, f"expected no tag; given the tag {node.tag}")
        kind, reader, nullable, least = _parts(kind)
        if nullable and isinstance(node, yaml.ScalarNode) and node.tag.endswith(":null"):
            return None
        if reader is not None:
            return self.read(reader, node, path, nullable)
        if get_origin(kind) is tuple:
            return self.sequence(get_args(kind)[0], node, path, least)
        if not isinstance(node, yaml.MappingNode):
            return self.fault(place, f"expected a mapping; given {_given(node)}")
        return self.mapping(kind, node, path)

    def sequence(self, kind: Any, node: yaml.Node, path: str, least: bool) -> object:
        if not isinstance(node, yaml.SequenceNode) or (least and not node.value):
            return self.fault(self.places[path], f"expected a list{' of at least one' * least}; given {_given(node)}")
        items = [
            self.value(kind, item, f"{path}[{at}]", item.start_mark.line + 1) for at, item in enumerate(node.value)
        ]
        return _FAULTY if _FAULTY in items else tuple(items)

    def mapping(self, kind: Any, node: yaml.MappingNode, path: str) -> object:
        fields = {field.name: field for field in msgspec.structs.fields(kind)}
        lines: dict[str, int] = {}
        values: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key, line = key_node.value, key_node.start_mark.line + 1
            inner = f"{path}.{key}".removeprefix(".")
            if not isinstance(key_node, yaml.ScalarNode):
                self.fault(self.place(line, path), f"expected text as a key; given {_given(key_node)}")
            elif key in lines:
                self.fault(self.place(line, inner), f"given twice, first in line {lines[key]}")
            elif key not in fields:
                near = [f"did you mean {each}?" for each in difflib.get_close_matches(key, fields, 1)]
                words = ["unknown key;", *near, "allowed:", ", ".join(fields)]
                self.fault(self.place(line, inner), " ".join(words))
            else:
                lines[key] = line
                values[key] = self.value(fields[key].type, value_node, inner, line)
        missing = [name for name, field in fields.items() if field.required and name not in values]
        for name in missing:
            self.fault(self.places[path], f"the required key {name} is missing")
        known = {name: value for name, value in values.items() if value is not _FAULTY}
        if kind is Config:
            return Config(**{"upstreams": (), **known})  # for `_clashes`, which tells its faults beside those so far
        return kind(**known) if len(known) == len(values) and not missing else _FAULTY

    def read(self, reader: Callable[[object], object], node: yaml.Node, path: str, nullable: bool) -> object:
        """A scalar, by its reader. Text with variables is read as text; if that fails, as YAML would read it."""
        tries: list[object]
        if isinstance(node, yaml.ScalarNode) and "${" in node.value:
            text = self.expanded(node.value, path)
            if text is None:
                return _FAULTY
            tries = [text, _plain(text)]
        else:
            tries = [_constructed(node)]
        allowed = ""
        for value in tries:
            if value is None and nullable:
                return None
            try:
                found = reader(value)
            except ValueError as error:
                allowed = str(error)
            else:
                return self.file(found, path) if isinstance(found, Path) else found
        return self.fault(self.places[path], f"expected {allowed}; given {self.given[path]}")

    def file(self, name: Path, path: str) -> object:
        """The path of a file that the configuration names; `_FAULTY` if the file cannot be read."""
        file = self.folder / name
        try:
            if self.opens:
                file.open("rb").close()
        except OSError as error:
            problem = f"expected a file that can be read; given {self.given[path]}: {error.strerror}"
            return self.fault(self.places[path], problem)
        return file

    def expanded(self, text: str, path: str) -> str | None:
        """Text with the values of its variables. None if one has no value; that fault is noted."""
        faults = []

        def value_of(found: re.Match[str]) -> str:
            name, default = found[1], found[2]
            if name is None:
                faults.append("${NAME} or ${NAME:-default}, the name of letters, digits and _")
                return ""
            value = os.environ.get(name)
            if value is None and default is None:
                faults.append(f"{name} in the environment, or a default as in ${{{name}:-default}}")
            return default[2:] if default is not None and not value else value or ""

        expanded = _VARIABLE.sub(value_of, text)
        for fault in faults:
            self.fault(self.places[path], f"expected {fault}; given {self.given[path]}")
        return None if faults else expanded

    def config(self, value: object, in_force: Config | None = None) -> Config:
        """The configuration. Raises ConfigError for all faults, clashes between values included."""
        assert isinstance(value, Config)
        self.check([*_clashes(value, self.given), *_changes(value, in_force, self.given)])
        return value

    def check(self, clashes: Iterable[Clash]) -> None:
        """Raises ConfigError for all faults, these clashes among them."""
        told = list(self.faults)
        for paths, problem in clashes:
            place = next((self.places[path] for path in paths if path in self.places), self.place(1, paths[0]))
            if not any(fault.startswith(place) for fault in told):  # else a default stands for the faulty value
                self.fault(place, problem)
        if self.faults:
            raise ConfigError(*self.faults)


def _parts(kind: Any) -> tuple[Any, Callable[[object], object] | None, bool, bool]:
    """The parts of a field's type: plain type, reader, whether null is allowed, whether a list needs an item."""
    nullable = least = False
    arguments = get_args(kind)
    if NoneType in arguments:
        nullable = True
        [kind] = [each for each in arguments if each is not NoneType]
    if get_origin(kind) is Annotated:
        kind, noted = get_args(kind)[:2]
        if callable(noted):
            return kind, noted, nullable, False
        least = True
    return kind, None, nullable, least


def _plain(text: str) -> object:
    """The value of text without quotes in YAML."""
    tag = yaml.SafeLoader("").resolve(yaml.ScalarNode, text, (True, False))  # type: ignore[no-untyped-call]
    return _constructed(yaml.ScalarNode(tag, text))


def _constructed(node: yaml.Node) -> object:
    """The value of a scalar in YAML. For a mapping or a list, a value that every reader refuses."""
    if not isinstance(node, yaml.ScalarNode):
        return _FAULTY
    try:
        return yaml.constructor.SafeConstructor().construct_object(node)
    except Exception:  # there are many kinds: `!!int x`, a 13th month, thousands of digits
        return node.value


def _given(node: yaml.Node) -> str:
    if not isinstance(node, yaml.ScalarNode):
        return "a mapping" if isinstance(node, yaml.MappingNode) else "a list" if node.value else "an empty list"
    return "null" if node.tag.endswith(":null") else _quoted(node.value)


def _quoted(text: str) -> str:
    """Text as an error repeats it: on one line, not too long, without the parts of a URL that may be secret."""
    text = re.sub(r"(?s)(?<=//).*@|(?<=\?).*", "...", text)
    return repr(text if len(text) <= GIVEN_CHARS_MAX else text[:GIVEN_CHARS_MAX] + "...")


def _is_reached_by(url: Url, listen: Address) -> bool:
    """Whether a URL leads to a listener, as far as that shows without looking up names."""
    is_loopback = url.host in _LOOPBACK or url.host.startswith("127.")
    same = url.host == listen.host or (listen.host in ANY_ADDRESS and (is_loopback or url.host in ANY_ADDRESS))
    either = "localhost" in (url.host, listen.host) and is_loopback and listen.host in _LOOPBACK
    return url.port == listen.port and (same or either)


def _limits_clashes(limits: Limits, given: dict[str, str]) -> Iterator[Clash]:
    if limits.held_bytes_max < limits.inspected_body_bytes_max:
        paths = ("limits.held_bytes_max", "limits.inspected_body_bytes_max")
        shown = " and ".join(given.get(path, "the default") for path in paths)
        yield paths, f"expected held_bytes_max of at least inspected_body_bytes_max, room for one body; given {shown}"


def _clashes(config: Config, given: dict[str, str]) -> Iterator[Clash]:
    """Values that are wrong only together."""
    if config.admin and config.admin.listen == config.listen and (config.listen.port or config.listen.path):
        shown = given.get("admin.listen") or given.get("listen")
        yield ("admin.listen", "listen"), f"expected an admin.listen other than listen; given {shown}"
    if config.traces and _is_reached_by(config.traces.endpoint, config.listen):
        shown = given.get("traces.endpoint")
        yield (
            ("traces.endpoint",),
            f"expected the address of a collector; given {shown}, where the gateway itself listens",
        )
    for at, upstream in enumerate(config.upstreams):
        yield from _upstream_clashes(upstream, f"upstreams[{at}]", config, given)
    yield from _limits_clashes(config.limits, given)
    names: dict[str, int] = {}
    matches: dict[Match, int] = {}
    for at, upstream in enumerate(config.upstreams):
        path, match = f"upstreams[{at}]", upstream.match
        if (first := names.setdefault(upstream.name, at)) != at:
            shown = given.get(f"{path}.name", upstream.name)
            yield (f"{path}.name",), f"expected another name than that of upstreams[{first}]; given {shown}"
        if (first := matches.setdefault(match, at)) != at:
            parts = ", ".join(f"{k} {given.get(f'{path}.match.{k}', 'null')}" for k in ("host", "prefix"))
            yield (
                (f"{path}.match", path),
                f"expected other requests than those of upstreams[{first}]; given the same requests: {parts}",
            )


def _upstream_clashes(upstream: Upstream, path: str, config: Config, given: dict[str, str]) -> Iterator[Clash]:
    """Values of an upstream that clash with each other or with the listener."""
    own = "where the gateway itself listens"
    if upstream.socket is not None and upstream.socket == config.listen.path:
        shown = given.get(f"{path}.socket")
        yield (f"{path}.socket",), f"expected the socket of an MCP server; given {shown}, {own}"
    elif upstream.socket is None and _is_reached_by(upstream.url, config.listen):
        shown = given.get(f"{path}.url")
        yield (f"{path}.url",), f"expected the address of an MCP server; given {shown}, {own}"
    tls = upstream.tls
    if upstream.url.scheme != "https" and tls != UpstreamTls():
        yield (f"{path}.tls",), f"expected an https url beside it; given {given.get(f'{path}.url')}"
    if (tls.certificate is None) != (tls.key is None):
        there, missing = ("certificate", "key") if tls.key is None else ("key", "certificate")
        yield (f"{path}.tls.{there}",), f"expected a {missing} beside it; given none"


def _changes(config: Config, in_force: Config | None, given: dict[str, str]) -> Iterator[Clash]:
    """Changes to the configuration in force that a reload cannot make."""
    for name in () if in_force is None else FIXED:
        if getattr(config, name) != getattr(in_force, name):
            shown = given.get(name, "nothing, which is the default")
            yield (name,), f"{name} cannot change while the gateway runs; expected what is in force; given {shown}"


def parse(
    text: str, source: str, folder: Path | None = None, in_force: Config | None = None, opens: bool = False
) -> Config:
    """The configuration in a YAML text. Raises `ConfigError`, each line of it starting with `source:line: key.path: `.

    File names in it are relative to `folder`, by default the folder of `source`. With `opens` files must be readable.
    With `in_force`, the configuration that runs, values that a reload cannot change must be the same.
    """
    document = _Document(source, Path(source).parent if folder is None else folder, opens)
    root = document.compose(text, " with at least the key upstreams")
    return document.config(document.value(Config, root, "", root.start_mark.line + 1), in_force)


def load(path: Path, in_force: Config | None = None, folder: Path | None = None) -> Config:
    """The configuration in a file of UTF-8, or on standard input if the path is `-`. The rest is as for `parse`.

    Raises `ConfigError`, also if the file cannot be read.
    """
    source, folder = ("standard input", Path()) if str(path) == "-" else (str(path), folder)
    return parse(_text(path, source), source, folder, in_force, opens=True)


def _text(path: Path, source: str) -> str:
    """The text of a file, or of standard input. Raises ConfigError."""
    try:
        data = sys.stdin.buffer.read() if str(path) == "-" else path.read_bytes()
        return data.decode("utf-8")
    except OSError as error:
        raise ConfigError(f"{source}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{source}:{line}: expected UTF-8; given the byte {data[error.start]:#x}") from error


def load_stdio(path: Path) -> StdioConfig:
    """The configuration in a file, for a server on stdio. `log.file` is relative to its folder. Raises ConfigError."""
    document = _Document(str(path), path.parent, opens=True)
    root = document.compose(_text(path, str(path)))
    value = document.value(StdioConfig, root, "", root.start_mark.line + 1)
    document.check(_limits_clashes(value.limits, document.given) if isinstance(value, StdioConfig) else ())
    assert isinstance(value, StdioConfig)
    if value.log.file is None:
        return value
    file = path.parent / value.log.file
    try:
        file.open("ab").close()
    except OSError as error:
        given = document.given["log.file"]
        problem = f"expected a file that can be written; given {given}: {error.strerror}"
        document.check([(("log.file",), problem)])
    return msgspec.structs.replace(value, log=msgspec.structs.replace(value.log, file=str(file)))


def admin_address(text: str) -> Address:
    """The address that the flag --admin names. Raises ConfigError."""
    try:
        return _read_address(text)
    except ValueError as error:
        raise ConfigError(f"--admin: expected {error}; given {_quoted(text)}") from None


def for_upstream(url: str, listen: str | None, admin: str | None) -> Config:
    """The configuration of the flags --upstream, --listen and --admin: one upstream, named "upstream".

    None stands for the default. Raises `ConfigError`, each line of it starting with the flag.
    """
    document = _Document("", Path(), opens=False)

    def read(flag: str, text: str, path: str, reader: Callable[[str], Any]) -> Any:
        document.places[path], document.given[path] = flag, _quoted(text)
        try:
            return reader(text)
        except ValueError as error:
            return document.fault(flag, f"expected {error}; given {_quoted(text)}")

    values: dict[str, Any] = {}
    server = read("--upstream", url, "upstreams[0].url", _read_url)
    if listen is not None:
        values["listen"] = read("--listen", listen, "listen", _read_address)
    if admin is not None:
        values["admin"] = Admin(listen=read("--admin", admin, "admin.listen", _read_address))
    if document.faults:
        raise ConfigError(*document.faults)
    return document.config(Config(upstreams=(Upstream(name="upstream", url=server),), **values))
