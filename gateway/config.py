"""The configuration.

In: YAML text, or the command line's flags. Out: frozen structs with every default filled in, or one
`ConfigError` with a line for each fault: the file and line (or the flag), the key, what was given, what is
allowed. What always holds: nothing half-read is returned, and no I/O happens but the reading of the file.

The structs are the specification. Where text must be read or checked, a field's type carries its reader;
`_learn` collects keys and readers from the structs, `_Document` applies them and remembers where each value
stands, msgspec does the rest of the typing, and `_clashes` compares what only the whole shows.
"""

import difflib
import ipaddress
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, NoReturn, get_args, get_origin

import msgspec
import yaml
from msgspec import Meta, Struct

VALUES_MAX = 10_000  # with aliases a few lines can stand for billions of values
GIVEN_CHARS_MAX = 80  # of a value that an error repeats

_PORTS = {"http": 80, "https": 443}
_SECONDS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600}
_BYTES = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


class ConfigError(Exception):
    """The configuration cannot be used. Each of `args` is one fault, for an operator to read, on one line."""

    def __str__(self) -> str:
        return "\n".join(self.args)


class Address(Struct, frozen=True):
    """Where to listen: a lower-case name or an IP address (IPv6 without brackets), a port (0 is any)."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{_bracketed(self.host)}:{self.port}"


class Url(Struct, frozen=True):
    """An upstream: `http` or `https`, a host as in `Address`, a port (1 to 65535), the MCP endpoint's path.

    The path is for printing addresses only: requests keep the path that they came with.
    """

    scheme: str
    host: str
    port: int
    path: str

    @property
    def authority(self) -> str:
        """`host[:port]` as in a `Host` header: IPv6 in brackets, no port where it is the scheme's own."""
        return _bracketed(self.host) + ("" if self.port == _PORTS[self.scheme] else f":{self.port}")


# Readers: a YAML value in, the value of the field out; a ValueError says what is allowed.


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _match(pattern: str, value: object) -> re.Match[str] | None:
    return re.fullmatch(pattern, value) if isinstance(value, str) else None


def _host_port(value: object) -> tuple[str | None, int | None]:
    """`HOST` or `HOST:PORT`, the host in lower case, IPv6 without brackets; None if anything is wrong."""
    # No `%`: a zone is no part of a Host.
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
    host, port = _host_port(value)
    if host is None or port is None:
        raise ValueError("HOST:PORT such as 127.0.0.1:8080 or [::1]:8080, the port from 0 (any) to 65535")
    return Address(host, port)


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
    return _bracketed(host)


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
        raise ValueError("a duration of 1s or more: less is no sign that a peer has stopped")
    return seconds


def _matching(pattern: str, allowed: str) -> Callable[[object], object]:
    def read(value: object) -> object:
        if not _match(pattern, value):
            raise ValueError(allowed)
        return value

    return read


def _one_of(*choices: str) -> Callable[[object], object]:
    return _matching("|".join(choices), "one of " + ", ".join(choices))


# The types of fields.
Listen = Annotated[Address, _read_address]
Duration = Annotated[float, _read_positive]  # seconds
DurationOrZero = Annotated[float, _read_duration]  # seconds
Stall = Annotated[float, _read_stall]  # seconds
Size = Annotated[int, _read_size]  # bytes
Memory = Annotated[int, _read_memory]  # bytes
Count = Annotated[int, Meta(ge=1, le=1_000_000_000)]
File = Annotated[Path, _read_file]
HostName = Annotated[str, _read_host_name]  # as in a Host header: lower case, IPv6 in brackets, no port
HostRule = Annotated[str, _read_host_rule]
Name = Annotated[str, _matching("[a-z0-9][a-z0-9_-]*", "text like [a-z0-9][a-z0-9_-]* (a number in quotes)")]
HeaderName = Annotated[str, _matching(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+", "a header's name such as X-Org")]
Level = Annotated[str, _one_of("debug", "info", "warning", "error")]
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
PublicUrl = Annotated[
    str,
    _matching(
        r"https?://([A-Za-z0-9._-]+|\[[0-9A-Fa-f:]+\])(:[0-9]{1,5})?(/[A-Za-z0-9._~!$&'()*+,;=:@%-]+)*",
        "the gateway's own address as its clients use it, such as https://mcp.example or https://mcp.example/research",
    ),
]


# The sections. config.example.yaml says what each key means.


class Tls(Struct, frozen=True):
    """Files of the listener, relative ones already resolved against the file's folder; not yet opened."""

    certificate: File
    key: File


class Admin(Struct, frozen=True):
    """The listener of /metrics, /healthz and /readyz."""

    listen: Listen = Address("127.0.0.1", 9090)


class Log(Struct, frozen=True):
    """What is logged."""

    level: Level = "info"


class Match(Struct, frozen=True):
    """Which requests: both must hold, None holds always. A prefix ends at a `/` or at the path's end.

    Of several that hold, one with a host goes before one without, then the longer prefix goes first.
    No two upstreams have the same pair, so this order decides every request.
    """

    host: HostName | None = None
    prefix: Prefix | None = None


class Upstream(Struct, frozen=True, kw_only=True):
    """One MCP server. `host` is "upstream" (send `url.authority`), "preserve" or the very value to send."""

    name: Name
    url: Annotated[Url, _read_url]
    host: HostRule = "upstream"
    match: Match = Match()
    public_url: PublicUrl | None = None
    identity_headers: Annotated[tuple[HeaderName, ...], Meta(min_length=1)] | None = None
    add_headers: tuple[Added, ...] = ()
    connect_timeout: Duration = 5.0
    response_timeout: DurationOrZero = 600.0  # 0: none
    idle_timeout: DurationOrZero = 4.0
    requests_max: Count = 10_000


class Index(Struct, frozen=True, kw_only=True):
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
    drain_timeout: DurationOrZero = 10.0


class Config(Struct, frozen=True, kw_only=True):
    """All of it. At least one upstream, their names and matches unique."""

    listen: Listen = Address("127.0.0.1", 8080)
    tls: Tls | None = None
    allowed_hosts: tuple[HostName, ...] = ()
    allowed_origins: tuple[Origin, ...] = ()
    admin: Admin | None = Admin()
    log: Log = Log()
    upstreams: Annotated[tuple[Upstream, ...], Meta(min_length=1)]
    index: Index = Index()
    limits: Limits = Limits()


# What the structs say, by key path without list positions: `upstreams[].url`. Of a list, no keys.
_KEYS: dict[str, tuple[str, ...]] = {}
_READERS: dict[str, Callable[[object], object]] = {}
_NULLABLE: set[str] = set()


def _learn(kind: Any, path: str) -> None:
    arguments = get_args(kind)
    if get_origin(kind) is Annotated and callable(arguments[1]):
        _READERS[path] = arguments[1]
    elif get_origin(kind) is tuple:
        _KEYS[path] = ()
        _learn(arguments[0], path + "[]")
    elif isinstance(kind, type) and issubclass(kind, Struct):
        _KEYS[path] = kind.__struct_fields__
        for field in msgspec.structs.fields(kind):
            _learn(field.type, f"{path}.{field.name}".removeprefix("."))
    elif kind is NoneType:
        _NULLABLE.add(path)
    else:  # a union, or annotated with a Meta, which is msgspec's
        for argument in arguments:
            _learn(argument, path)


def _shape(path: str) -> str:
    return re.sub(r"\[[0-9]+\]", "[]", path)


_learn(Config, "")


class _Document:
    """Values on their way to a `Config`: where each stands, how it was given, and what is wrong."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.places: dict[str, str] = {}
        self.given: dict[str, str] = {}
        self.faults: list[str] = []

    def place(self, line: int, path: str = "") -> str:
        return f"{self.source}:{line}: {path}".removesuffix(": ")

    def fault(self, place: str, problem: str) -> None:
        text = f"{place}: {problem}"
        self.faults.append(text if text.isprintable() else repr(text)[1:-1])

    def fail(self, place: str, problem: str) -> NoReturn:
        self.fault(place, problem)
        raise ConfigError(*self.faults)

    def compose(self, text: str) -> yaml.MappingNode:
        """The root node of a YAML text."""
        try:
            root = yaml.compose(text, Loader=yaml.SafeLoader)
        except (yaml.YAMLError, ValueError, OverflowError, RecursionError) as error:  # "\UFFFFFFFF", [[[[...
            mark = getattr(error, "problem_mark", None)
            line = mark.line if mark else text.count("\n", 0, getattr(error, "position", 0))
            words = getattr(error, "problem", None) or str(error).partition("\n")[0]
            self.fail(self.place(line + 1), f"not YAML: {words}")
        if root is None or root.value == "":
            self.fail(self.place(1), "the file is empty; expected a mapping with at least the key upstreams")
        if not isinstance(root, yaml.MappingNode):
            self.fail(self.place(root.start_mark.line + 1), f"expected a mapping, given {_given(root)}")
        return root

    def value(self, node: yaml.Node, path: str, line: int) -> object:
        """What a node stands for, as its field has it; faults are noted.

        Collections are entered only where the structs have one, so that an alias of its own parent ends.
        """
        place, keys = self.place(line, path), _KEYS.get(_shape(path))
        if len(self.places) >= VALUES_MAX:
            self.fail(place, f"more than {VALUES_MAX} values, those of aliases counted each time")
        if node.tag not in yaml.SafeLoader.yaml_constructors:
            self.fault(place, f"expected no tag, given the tag {node.tag}")
            return None
        value: object
        if isinstance(node, yaml.MappingNode):
            value = self.mapping(node, path, keys) if keys else {}
        elif isinstance(node, yaml.SequenceNode):
            items = enumerate(node.value if keys == () else [])
            value = [self.value(item, f"{path}[{at}]", item.start_mark.line + 1) for at, item in items]
        else:
            try:
                value = yaml.constructor.SafeConstructor().construct_object(node, deep=True)
            except Exception:  # many kinds, on `!!int x`, a 13th month, thousands of digits
                value = node.value
        return self.read(value, path, place, _given(node))

    def mapping(self, node: yaml.MappingNode, path: str, allowed: tuple[str, ...]) -> dict[str, object]:
        lines: dict[str, int] = {}
        values: dict[str, object] = {}
        for key_node, value_node in node.value:
            key, line = key_node.value, key_node.start_mark.line + 1
            inner = f"{path}.{key}".removeprefix(".")
            if not isinstance(key_node, yaml.ScalarNode):
                self.fault(self.place(line, path), f"expected text as a key, given {_given(key_node)}")
            elif key in lines:
                self.fault(self.place(line, inner), f"given twice, first in line {lines[key]}")
            elif key not in allowed:
                near = [f"did you mean {each}?" for each in difflib.get_close_matches(key, allowed, 1)]
                words = ["unknown key;", *near, "allowed:", ", ".join(allowed)]
                self.fault(self.place(line, inner), " ".join(words))
            else:
                lines[key] = line
                values[key] = self.value(value_node, inner, line)
        return values

    def read(self, value: object, path: str, place: str, given: str) -> object:
        """The value as its field has it: by the field's reader, if it has one."""
        self.places[path], self.given[path] = place, given
        reader = _READERS.get(_shape(path))
        if reader and not (value is None and _shape(path) in _NULLABLE):
            try:
                return reader(value)
            except ValueError as error:
                self.fault(place, f"expected {error}; given {given}")
        return value

    def config(self, values: object) -> Config:
        """All values together; raises for the faults so far, and for those that only the whole shows."""
        if self.faults:
            raise ConfigError(*self.faults)
        try:
            config = msgspec.convert(values, Config)
        except msgspec.ValidationError as error:  # "Expected `int`, got `str` - at `$.index.page_size`"
            words, _, path = str(error).partition(" - at `$")
            path = path.removeprefix(".").removesuffix("`")
            words = words.replace("Object missing required field", "missing the required key")
            words = re.sub(r"\bobject\b", "mapping", words).replace("array", "list").replace("Exp", "exp")
            self.fail(self.places[path], f"{words}; given {self.given[path]}")
        for paths, problem in _clashes(config):
            self.fault(next(self.places[path] for path in paths if path in self.places), problem)
        if self.faults:
            raise ConfigError(*self.faults)
        return config


def _given(node: yaml.Node) -> str:
    if not isinstance(node, yaml.ScalarNode):
        return "a mapping" if isinstance(node, yaml.MappingNode) else "a list"
    return "null" if node.tag.endswith(":null") else _quoted(node.value)


def _quoted(text: str) -> str:
    """Text as an error repeats it: on one line, not too long, without what may be a secret in a URL."""
    text = re.sub(r"(?s)(?<=//).*@|(?<=\?).*", "...", text)
    return repr(text if len(text) <= GIVEN_CHARS_MAX else text[:GIVEN_CHARS_MAX] + "...")


def _clashes(config: Config) -> Iterator[tuple[tuple[str, ...], str]]:
    """What is wrong only together with something else: the paths to blame, best first, and the problem."""
    if config.admin and config.admin.listen == config.listen and config.listen.port:
        yield ("admin.listen", "listen"), f"given {config.listen}; expected an admin.listen other than listen"
    limits = config.limits
    if limits.held_bytes_max < limits.inspected_body_bytes_max:
        yield (
            ("limits.held_bytes_max", "limits.inspected_body_bytes_max"),
            f"given {limits.held_bytes_max} bytes; expected at least inspected_body_bytes_max, "
            f"{limits.inspected_body_bytes_max} bytes: one body must find room",
        )
    names: dict[str, int] = {}
    matches: dict[Match, int] = {}
    for at, upstream in enumerate(config.upstreams):
        path, match = f"upstreams[{at}]", upstream.match
        if (first := names.setdefault(upstream.name, at)) != at:
            yield (
                (path + ".name",),
                f"given {upstream.name!r}, the name of upstreams[{first}]; expected another",
            )
        if (first := matches.setdefault(match, at)) != at:
            pair = f"host {match.host!r} and prefix {match.prefix!r}"
            yield (
                (path + ".match", path),
                f"given {pair}: the same requests as upstreams[{first}]; expected others",
            )


def parse(text: str, source: str) -> Config:
    """The configuration in a YAML text; `source` is its path, for errors and for relative file names.

    Raises `ConfigError`, each line of it starting with `source:line: key.path: `.
    """
    document = _Document(source)
    root = document.compose(text)
    config = document.config(document.value(root, "", root.start_mark.line + 1))
    if config.tls is None:
        return config
    folder = Path(source).parent
    tls = Tls(certificate=folder / config.tls.certificate, key=folder / config.tls.key)
    return msgspec.structs.replace(config, tls=tls)


def load(path: Path) -> Config:
    """The configuration in a file, UTF-8. Raises `ConfigError`, also if the file cannot be read."""
    try:
        data = path.read_bytes()
        return parse(data.decode("utf-8"), str(path))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{path}:{line}: expected UTF-8, given the byte {data[error.start]:#x}") from error


def for_upstream(url: str, listen: str | None, admin: str | None) -> Config:
    """The configuration of the flags --upstream, --listen and --admin: one upstream, named "upstream".

    None leaves the default. Raises `ConfigError`, each line of it starting with the flag.
    """
    document = _Document("")

    def read(flag: str, text: str, path: str) -> object:
        return document.read(text, path, flag, _quoted(text))

    upstream = {"name": "upstream", "url": read("--upstream", url, "upstreams[0].url")}
    values: dict[str, object] = {"upstreams": [upstream]}
    if listen is not None:
        values["listen"] = read("--listen", listen, "listen")
    if admin is not None:
        values["admin"] = {"listen": read("--admin", admin, "admin.listen")}
    return document.config(values)
