"""The configuration as the gateway works with it: the sections, their keys and their defaults.

In: nothing. Out: frozen structs. Always: the type of a field carries the reader of its values (values.py).
"""

from typing import Annotated

from msgspec import Struct

from gateway.config.values import (
    Added,
    Address,
    AtLeastOne,
    Count,
    Duration,
    DurationOrZero,
    File,
    Format,
    HeaderName,
    HostName,
    HostRule,
    Level,
    Listen,
    LogFile,
    Memory,
    Name,
    Origin,
    Prefix,
    PublicUrl,
    Rate,
    Size,
    Socket,
    Stall,
    StoreUrl,
    Switch,
    Target,
    Url,
    read_url,
)

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
    url: Annotated[Url, read_url]
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
    keepalive_comments: DurationOrZero = 0.0  # 0: none
    requests_max: Count = 10_000


class IndexLimits(Struct, frozen=True, kw_only=True):
    """Limits and freshness of the task indexes (DESIGN 6 and 7)."""

    page_size: Count = 100
    page_bytes_max: Size = 4 * 2**20
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
    header_fields_max: Count = 256
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

    endpoint: Annotated[Url, read_url]


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

    def changed_from(self, before: "Config", *attributes: str) -> set[str]:
        """The names of upstreams of the configuration before that are gone, or differ in one of these attributes."""
        kept = {(u.name, *(getattr(u, a) for a in attributes)) for u in self.upstreams}
        return {u.name for u in before.upstreams if (u.name, *(getattr(u, a) for a in attributes)) not in kept}


class StdioLog(Struct, frozen=True):
    """What is logged for a server on stdio, how, and where: to a file, or on standard error."""

    level: Level | None = None  # warning; info with `access` or `audit`
    format: Format = "json"
    access: Switch = False
    audit: Switch = False
    file: LogFile | None = None


class StdioConfig(Struct, frozen=True, kw_only=True):
    """The configuration of `taskgate stdio`."""

    log: StdioLog = StdioLog()
    index: IndexLimits = IndexLimits()
    limits: Limits = Limits()
    traces: Traces | None = None
