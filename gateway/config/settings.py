"""The configuration as the gateway works with it; a field's type carries the reader of its values."""

from collections.abc import Iterator
from operator import attrgetter
from typing import Final, TypeAlias

from msgspec import Struct

from gateway.config import value_readers

# The sections. config.example.yaml says what each key means.


class Tls(Struct, frozen=True):
    """The certificate of the listener. The configuration's folder is already in front of relative names."""

    certificate: value_readers.File
    key: value_readers.File


class Admin(Struct, frozen=True):
    listen: value_readers.Listen = value_readers.Address("127.0.0.1", 9090)


class Log(Struct, frozen=True):
    level: value_readers.Level = "info"
    format: value_readers.Format | None = None  # text on a terminal, else json
    access: value_readers.Switch = False
    audit: value_readers.Switch = False


class MetricsSettings(Struct, frozen=True):
    """What is counted beside requests."""

    tasks: value_readers.Switch = True


class Match(Struct, frozen=True):
    """The requests of an upstream (DESIGN 8.4). None is every host, every path. A prefix ends at a `/` or the end."""

    host: value_readers.HostName | None = None
    prefix: value_readers.Prefix | None = None


class UpstreamTls(Struct, frozen=True, kw_only=True):
    """TLS with an https upstream. None: the system's authorities (`ca`), no certificate, the host of `url`."""

    ca: value_readers.File | None = None
    certificate: value_readers.File | None = None
    key: value_readers.File | None = None
    server_name: value_readers.HostName | None = None


class HealthCheck(Struct, frozen=True, kw_only=True):
    path: value_readers.Target
    interval: value_readers.Duration = 10.0
    timeout: value_readers.Duration = 5.0


class Upstream(Struct, frozen=True, kw_only=True):
    """One MCP server. `host` is the `Host` to send: "upstream" is `url.authority`, "preserve" is the client's."""

    name: value_readers.Name
    url: value_readers.HttpUrl
    socket: value_readers.Socket | None = None
    tls: UpstreamTls = UpstreamTls()
    health_check: HealthCheck | None = None
    host: value_readers.HostRule = "upstream"
    match: Match = Match()
    public_url: value_readers.PublicUrl | None = None
    identity_headers: value_readers.AtLeastOne[value_readers.HeaderName] | None = None
    add_headers: tuple[value_readers.Added, ...] = ()
    connect_timeout: value_readers.Duration = 5.0
    response_timeout: value_readers.DurationOrZero = 600.0  # 0: no limit
    idle_timeout: value_readers.DurationOrZero = 4.0
    requests_max: value_readers.Count = 10_000


class IndexLimits(Struct, frozen=True, kw_only=True):
    page_size: value_readers.Count = 100
    page_bytes_max: value_readers.Size = 4 * 2**20
    max_age: value_readers.DurationOrZero = 1.0
    full_crawl_interval: value_readers.DurationOrZero = 300.0  # 0: every refresh is a full crawl
    tasks_max: value_readers.Count = 50_000
    pages_max: value_readers.Count = 200_000
    memory_bytes_max: value_readers.Memory = 2**30
    sessions_max: value_readers.Count = 10_000
    idle_timeout: value_readers.Duration = 3600.0
    find_again: value_readers.FindAgain = "credentials"
    crawl_timeout: value_readers.Duration = 30.0


class Limits(Struct, frozen=True, kw_only=True):
    inspected_body_bytes_max: value_readers.Size = 2 * 2**20
    inspected_event_bytes_max: value_readers.Size = 2 * 2**20
    held_bytes_max: value_readers.Memory = 256 * 2**20
    header_bytes_max: value_readers.Size = 64 * 2**10
    header_fields_max: value_readers.Count = 256
    connections_max: value_readers.Count = 10_000
    request_timeout: value_readers.Duration = 30.0
    stall_timeout: value_readers.Stall = 60.0
    keepalive_timeout: value_readers.DurationOrZero = 75.0
    shutdown_delay: value_readers.DurationOrZero = 0.0
    drain_timeout: value_readers.DurationOrZero = 10.0


class StoreSettings(Struct, frozen=True, kw_only=True):
    url: value_readers.StoreUrl
    timeout: value_readers.Duration = 0.1


class GuardLimits(Struct, frozen=True, kw_only=True):
    """Limits of what clients may ask of tasks, None: no limit; and whether each has only his own."""

    task_operations_per_second: value_readers.Rate | None = None
    task_operations_burst: value_readers.Count = 20
    task_ttl_max: value_readers.Duration | None = None
    own_tasks: value_readers.Switch = False
    identities_max: value_readers.Count = 10_000


class Traces(Struct, frozen=True, kw_only=True):
    """Where spans go: a collector that takes OTLP over HTTP. The path `/` stands for `/v1/traces`."""

    endpoint: value_readers.HttpUrl


class Config(Struct, frozen=True, kw_only=True):
    """The configuration. Names of upstreams are unique, and so are their matches."""

    listen: value_readers.Listen = value_readers.Address("127.0.0.1", 8080)
    tls: Tls | None = None
    allowed_hosts: tuple[value_readers.HostName, ...] = ()
    allowed_origins: tuple[value_readers.Origin, ...] = ()
    admin: Admin | None = Admin()
    log: Log = Log()
    metrics: MetricsSettings = MetricsSettings()
    traces: Traces | None = None
    upstreams: value_readers.AtLeastOne[Upstream]
    index: IndexLimits = IndexLimits()
    limits: Limits = Limits()
    guards: GuardLimits = GuardLimits()
    store: StoreSettings | None = None

    def changed_from(self, before: "Config", *attributes: str) -> set[str]:
        """The names of upstreams of the configuration before that are gone, or differ in one of these attributes."""
        kept = {(u.name, *(getattr(u, a) for a in attributes)) for u in self.upstreams}
        return {u.name for u in before.upstreams if (u.name, *(getattr(u, a) for a in attributes)) not in kept}


class StdioLog(Struct, frozen=True):
    """What is logged for a server on stdio, how, and where: to a file, or on standard error."""

    level: value_readers.Level | None = None  # warning; info with `access` or `audit`
    format: value_readers.Format | None = None  # text on a terminal, else json
    access: value_readers.Switch = False
    audit: value_readers.Switch = False
    file: value_readers.LogFile | None = None


class StdioConfig(Struct, frozen=True, kw_only=True):
    log: StdioLog = StdioLog()
    index: IndexLimits = IndexLimits()
    limits: Limits = Limits()
    metrics: MetricsSettings = MetricsSettings()
    traces: Traces | None = None


# Values that are wrong only together, and changes that a reload cannot make.

FIXED: Final = ("listen", "tls", "admin", "traces", "store", "guards.own_tasks")  # keys that a reload cannot change
_OWN: Final = "where the gateway itself listens"
_LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")

Clash: TypeAlias = tuple[tuple[str, ...], str]
"""Values that are wrong only together: the paths to blame, best first, and the problem."""


def _is_reached_by(url: value_readers.Url, listen: value_readers.Address) -> bool:
    """Whether a URL leads to a listener, as far as that shows without looking up names."""
    is_loopback = url.host in _LOOPBACK or url.host.startswith("127.")
    is_ours = is_loopback or url.host in value_readers.ANY_ADDRESS
    same = url.host == listen.host or (is_ours and listen.host in value_readers.ANY_ADDRESS)
    either = "localhost" in (url.host, listen.host) and is_loopback and listen.host in _LOOPBACK
    return url.port == listen.port and (same or either)


def clashes(config: Config | StdioConfig, in_force: Config | None, given: dict[str, str]) -> Iterator[Clash]:
    if config.limits.held_bytes_max < config.limits.inspected_body_bytes_max:
        paths = ("limits.held_bytes_max", "limits.inspected_body_bytes_max")
        shown = " and ".join(given.get(path, "the default") for path in paths)
        yield paths, f"expected held_bytes_max of at least inspected_body_bytes_max, room for one body; given {shown}"
    if isinstance(config, StdioConfig):
        return
    if config.admin and config.admin.listen == config.listen and (config.listen.port or config.listen.path):
        same = given.get("admin.listen") or given.get("listen")
        yield ("admin.listen", "listen"), f"expected an admin.listen other than listen; given {same}"
    if config.traces and _is_reached_by(config.traces.endpoint, config.listen):
        yield ("traces.endpoint",), f"expected the address of a collector; given {given.get('traces.endpoint')}, {_OWN}"
    names, matches = dict[str, int](), dict[Match, int]()
    for at, upstream in enumerate(config.upstreams):
        path, match = f"upstreams[{at}]", upstream.match
        yield from _upstream_clashes(upstream, path, config, given)
        if (first := names.setdefault(upstream.name, at)) != at:
            shown = given.get(f"{path}.name", upstream.name)
            yield (f"{path}.name",), f"expected another name than that of upstreams[{first}]; given {shown}"
        if (first := matches.setdefault(match, at)) != at:
            problem = f"the same requests as those of upstreams[{first}]: give one its own match.prefix, such as /two"
            yield (f"{path}.match", path), problem
    for name in () if in_force is None else FIXED:
        if attrgetter(name)(config) != attrgetter(name)(in_force):
            shown = given.get(name, "nothing, which is the default")
            yield (name,), f"{name} cannot change while the gateway runs; expected what is in force; given {shown}"


def _upstream_clashes(upstream: Upstream, path: str, config: Config, given: dict[str, str]) -> Iterator[Clash]:
    if upstream.socket is not None and upstream.socket == config.listen.path:
        yield (f"{path}.socket",), f"expected the socket of an MCP server; given {given.get(f'{path}.socket')}, {_OWN}"
    elif upstream.socket is None and _is_reached_by(upstream.url, config.listen):
        yield (f"{path}.url",), f"expected the address of an MCP server; given {given.get(f'{path}.url')}, {_OWN}"
    tls = upstream.tls
    if upstream.url.scheme != "https" and tls != UpstreamTls():
        yield (f"{path}.tls",), f"expected an https url beside it; given {given.get(f'{path}.url')}"
    if (tls.certificate is None) != (tls.key is None):
        there, missing = ("certificate", "key") if tls.key is None else ("key", "certificate")
        yield (f"{path}.tls.{there}",), f"expected a {missing} beside it; given none"
