"""Values that are wrong only together, and changes that a reload cannot make."""

from collections.abc import Iterator
from operator import attrgetter
from typing import Final, TypeAlias

from gateway.config.model import Config, Limits, Match, Upstream, UpstreamTls
from gateway.config.values import ANY_ADDRESS, Address, Url

FIXED: Final = ("listen", "tls", "admin", "traces", "store", "guards.own_tasks")  # keys that a reload cannot change
_OWN: Final = "where the gateway itself listens"
_LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")

Clash: TypeAlias = tuple[tuple[str, ...], str]
"""Values that are wrong only together: the paths to blame, best first, and the problem."""


def _is_reached_by(url: Url, listen: Address) -> bool:
    """Whether a URL leads to a listener, as far as that shows without looking up names."""
    is_loopback = url.host in _LOOPBACK or url.host.startswith("127.")
    same = url.host == listen.host or (listen.host in ANY_ADDRESS and (is_loopback or url.host in ANY_ADDRESS))
    either = "localhost" in (url.host, listen.host) and is_loopback and listen.host in _LOOPBACK
    return url.port == listen.port and (same or either)


def limits_clashes(limits: Limits, given: dict[str, str]) -> Iterator[Clash]:
    if limits.held_bytes_max < limits.inspected_body_bytes_max:
        paths = ("limits.held_bytes_max", "limits.inspected_body_bytes_max")
        shown = " and ".join(given.get(path, "the default") for path in paths)
        yield paths, f"expected held_bytes_max of at least inspected_body_bytes_max, room for one body; given {shown}"


def clashes(config: Config, given: dict[str, str]) -> Iterator[Clash]:
    if config.admin and config.admin.listen == config.listen and (config.listen.port or config.listen.path):
        shown = given.get("admin.listen") or given.get("listen")
        yield ("admin.listen", "listen"), f"expected an admin.listen other than listen; given {shown}"
    if config.traces and _is_reached_by(config.traces.endpoint, config.listen):
        yield ("traces.endpoint",), f"expected the address of a collector; given {given.get('traces.endpoint')}, {_OWN}"
    yield from limits_clashes(config.limits, given)
    names, matches = dict[str, int](), dict[Match, int]()
    for at, upstream in enumerate(config.upstreams):
        path, match = f"upstreams[{at}]", upstream.match
        yield from _upstream_clashes(upstream, path, config, given)
        if (first := names.setdefault(upstream.name, at)) != at:
            shown = given.get(f"{path}.name", upstream.name)
            yield (f"{path}.name",), f"expected another name than that of upstreams[{first}]; given {shown}"
        if (first := matches.setdefault(match, at)) != at:
            parts = ", ".join(f"{k} {given.get(f'{path}.match.{k}', 'null')}" for k in ("host", "prefix"))
            problem = f"expected other requests than those of upstreams[{first}]; given the same requests: {parts}"
            yield (f"{path}.match", path), problem


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


def changes(config: Config, in_force: Config | None, given: dict[str, str]) -> Iterator[Clash]:
    for name in () if in_force is None else FIXED:
        if attrgetter(name)(config) != attrgetter(name)(in_force):
            shown = given.get(name, "nothing, which is the default")
            yield (name,), f"{name} cannot change while the gateway runs; expected what is in force; given {shown}"
