"""The configuration as the gateway works with it; the type of a field carries the reader of its values (values.py)."""

from typing import Final

from msgspec import Struct

from gateway.config import values

GONE: Final = {
    "keepalive_comments": "raise the limit on quiet streams in the balancer (docs/operating.md, Quiet streams)",
}
"""Keys of earlier versions, and what took their place."""

# The sections. config.example.yaml says what each key means.


class Tls(Struct, frozen=True):
    """The certificate of the listener. The configuration's folder is already in front of relative names."""

    certificate: values.File
    key: values.File


class Admin(Struct, frozen=True):
    listen: values.Listen = values.Address("127.0.0.1", 9090)


class Log(Struct, frozen=True):
    level: values.Level = "info"
    format: values.Format = "json"
    access: values.Switch = False
    audit: values.Switch = False


class MetricsSettings(Struct, frozen=True):
    """What is counted beside requests."""

    tasks: values.Switch = True


class Match(Struct, frozen=True):
    """The requests of an upstream: those to this host, with this prefix. None stands for every host, every path.

    A prefix ends at a `/` or at the end of the path. If a request matches several upstreams, a host goes before none,
    then the longer prefix goes first. No two upstreams have the same pair, so this decides every request.
    """

    host: values.HostName | None = None
    prefix: values.Prefix | None = None


class UpstreamTls(Struct, frozen=True, kw_only=True):
    """TLS with an https upstream. None: the system's authorities (`ca`), no certificate, the host of `url`."""

    ca: values.File | None = None
    certificate: values.File | None = None
    key: values.File | None = None
    server_name: values.HostName | None = None


class HealthCheck(Struct, frozen=True, kw_only=True):
    path: values.Target
    interval: values.Duration = 10.0
    timeout: values.Duration = 5.0


class Upstream(Struct, frozen=True, kw_only=True):
    """One MCP server. `host` is the `Host` to send: "upstream" is `url.authority`, "preserve" is the client's."""

    name: values.Name
    url: values.HttpUrl
    socket: values.Socket | None = None
    tls: UpstreamTls = UpstreamTls()
    health_check: HealthCheck | None = None
    host: values.HostRule = "upstream"
    match: Match = Match()
    public_url: values.PublicUrl | None = None
    identity_headers: values.AtLeastOne[values.HeaderName] | None = None
    add_headers: tuple[values.Added, ...] = ()
    connect_timeout: values.Duration = 5.0
    response_timeout: values.DurationOrZero = 600.0  # 0: no limit
    idle_timeout: values.DurationOrZero = 4.0
    requests_max: values.Count = 10_000


class IndexLimits(Struct, frozen=True, kw_only=True):
    page_size: values.Count = 100
    page_bytes_max: values.Size = 4 * 2**20
    max_age: values.DurationOrZero = 1.0
    full_crawl_interval: values.DurationOrZero = 300.0  # 0: every refresh is a full crawl
    tasks_max: values.Count = 50_000
    pages_max: values.Count = 200_000
    memory_bytes_max: values.Memory = 2**30
    sessions_max: values.Count = 10_000
    idle_timeout: values.Duration = 3600.0
    find_again: values.FindAgain = "credentials"
    crawl_timeout: values.Duration = 30.0


class Limits(Struct, frozen=True, kw_only=True):
    inspected_body_bytes_max: values.Size = 4 * 2**20
    inspected_event_bytes_max: values.Size = 4 * 2**20
    held_bytes_max: values.Memory = 256 * 2**20
    header_bytes_max: values.Size = 64 * 2**10
    header_fields_max: values.Count = 256
    connections_max: values.Count = 10_000
    request_timeout: values.Duration = 30.0
    stall_timeout: values.Stall = 60.0
    keepalive_timeout: values.DurationOrZero = 75.0
    shutdown_delay: values.DurationOrZero = 0.0
    drain_timeout: values.DurationOrZero = 10.0


class StoreSettings(Struct, frozen=True, kw_only=True):
    url: values.StoreUrl
    timeout: values.Duration = 0.1


class GuardLimits(Struct, frozen=True, kw_only=True):
    """Limits of what clients may ask of tasks, None: no limit; and whether each has only his own."""

    task_operations_per_second: values.Rate | None = None
    task_operations_burst: values.Count = 20
    task_ttl_max: values.Duration | None = None
    own_tasks: values.Switch = False
    identities_max: values.Count = 10_000


class Traces(Struct, frozen=True, kw_only=True):
    """Where spans go: a collector that takes OTLP over HTTP. The path `/` stands for `/v1/traces`."""

    endpoint: values.HttpUrl


class Config(Struct, frozen=True, kw_only=True):
    """The configuration. Names of upstreams are unique, and so are their matches."""

    listen: values.Listen = values.Address("127.0.0.1", 8080)
    tls: Tls | None = None
    allowed_hosts: tuple[values.HostName, ...] = ()
    allowed_origins: tuple[values.Origin, ...] = ()
    admin: Admin | None = Admin()
    log: Log = Log()
    metrics: MetricsSettings = MetricsSettings()
    traces: Traces | None = None
    upstreams: values.AtLeastOne[Upstream]
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

    level: values.Level | None = None  # warning; info with `access` or `audit`
    format: values.Format = "json"
    access: values.Switch = False
    audit: values.Switch = False
    file: values.LogFile | None = None


class StdioConfig(Struct, frozen=True, kw_only=True):
    log: StdioLog = StdioLog()
    index: IndexLimits = IndexLimits()
    limits: Limits = Limits()
    metrics: MetricsSettings = MetricsSettings()
    traces: Traces | None = None
