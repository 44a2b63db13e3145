"""The check of `Host` and `Origin`, against DNS rebinding: on loopback, `Host` and `Origin` are loopback, or listed."""

import ipaddress
import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Final

from gateway.config import Address, Config
from gateway.errors import Forbidden
from gateway.http.header_fields import Headers

_HOST: Final = re.compile(r"([a-z0-9._~!$&'()*+,;=%-]{1,255}|\[[0-9a-f:.]{1,45}\])(?::[0-9]*)?")
_HOST_BYTES_MAX: Final = 300  # a name of 255, and a port


class HostCheck:
    def __init__(self, listen: Address, config: Config) -> None:
        self._guarded = _is_loopback(listen.host)
        self._hosts = {h.lower() for h in config.allowed_hosts}
        self._hosts |= {u.match.host.lower() for u in config.upstreams if u.match.host is not None}
        self._origins = {o.lower() for o in config.allowed_origins}

    def check(self, headers: Headers) -> None:
        """Let a request with these fields in. Raises Forbidden."""
        for host in headers.all(b"host"):
            given = host.decode("latin-1")
            if len(host) > _HOST_BYTES_MAX:
                raise Forbidden(f"Host {given!r} is longer than {_HOST_BYTES_MAX} bytes")
            if self._guarded and not ((name := _short_host_name(host)) in self._hosts or _is_loopback(name)):
                raise Forbidden(f"Host {given!r} is neither a loopback name nor in allowed_hosts")
        for origin in headers.all(b"origin") if self._guarded else ():
            text = origin.strip(b" \t").decode("latin-1").lower()
            if not (_is_loopback(host_name(text.partition("://")[2])) or text in self._origins):
                given = origin.decode("latin-1")
                raise Forbidden(f"Origin {given!r} is neither a loopback origin nor in allowed_origins")


def exposed(config: Config) -> Iterator[str]:
    """What is open to other machines, in words."""
    if not (config.listen.path or _is_loopback(config.listen.host)):
        yield f"listen: on {config.listen} Host and Origin are not checked: what is in front decides who comes in"
    if config.admin and not (config.admin.listen.path or _is_loopback(config.admin.listen.host)):
        yield f"admin.listen: {config.admin.listen} is open: whoever reaches it sees the page and the metrics"


@lru_cache(maxsize=1024)
def _short_host_name(value: bytes) -> str:
    return host_name(value.strip(b" \t").decode("latin-1"))


@lru_cache(maxsize=1024)
def _is_loopback(name: str) -> bool:
    try:
        address = ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return name == "localhost"
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback  # Python 3.13 looks into a mapped address, 3.11 does not


def host_name(host: str) -> str:
    """The name in a `Host` value, without the port; empty if the value is malformed."""
    found = _HOST.fullmatch(host.lower())
    return found[1] if found is not None else ""
