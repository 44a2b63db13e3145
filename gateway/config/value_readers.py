"""The readers of values: each takes what YAML gives, and returns what the gateway works with, or what is allowed."""

import ipaddress
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final, TypeAlias, TypeVar

from msgspec import Struct

FILE_BYTES_MAX: Final = 2**24  # of one that the configuration names
COUNT_MAX: Final = 1_000_000_000
RATE_MAX: Final = 1_000_000
DURATION_MAX_S: Final = 365 * 24 * 3600  # an instant so long ago can still be written
LEVELS: Final = ("debug", "info", "warning", "error")
ANY_ADDRESS: Final = ("0.0.0.0", "::")  # all of this machine's
_PORTS: Final = {"http": 80, "https": 443}
_SOCKET_BYTES_MAX: Final = 107  # sun_path has 108
_SECONDS: Final = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86_400}
_BYTES: Final = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}

_Reader: TypeAlias = Callable[[object], object]


class Address(Struct, frozen=True):
    """Where to listen: a lower-case name or an IP address (IPv6 without brackets), and a port (0 is any); or a path.

    The host `::` is every address, of IPv4 too. `path` is that of a Unix socket; the host is then empty, the port 0.
    """

    host: str
    port: int
    path: str = ""

    def __str__(self) -> str:
        return f"unix:{self.path}" if self.path else f"{bracketed(self.host)}:{self.port}"

    @property
    def here(self) -> "Address":
        """The address for a browser on this machine."""
        return Address("127.0.0.1", self.port) if self.host in ANY_ADDRESS else self


class Url(Struct, frozen=True):
    """An upstream or a collector: `http` or `https`, a host as in `Address`, a port (1 to 65535), a path to print."""

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


@dataclass(frozen=True)
class NamedFile:
    """A file that the configuration names, and what was in it when it was read. Two under one name are equal."""

    path: Path
    data: bytes = field(default=b"", compare=False)

    @classmethod
    def read(cls, path: Path) -> "NamedFile":
        """Raises OSError, or ValueError, whose words never quote the file."""
        if path.exists() and not path.is_file():
            raise ValueError("it is no file")
        with path.open("rb") as opened:
            data = opened.read(FILE_BYTES_MAX + 1)
        if len(data) > FILE_BYTES_MAX:
            raise ValueError("it is larger than 16 MiB")
        return cls(path, data)

    def __str__(self) -> str:
        return str(self.path)


# Readers: a YAML value in, the value of the field out. A ValueError says what is allowed.


def bracketed(host: str) -> str:
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


_LISTEN: Final = (
    "HOST:PORT, such as 127.0.0.1:8080 or [::1]:8080, the port from 0 to 65535; or unix:/PATH, the path of at most "
    f"{_SOCKET_BYTES_MAX} bytes"
)
_URL: Final = (
    "http:// or https:// and a host, perhaps a port up to 65535 and a path, such as http://127.0.0.1:8000/mcp or "
    "http://[::1]:8000; no zone, user, query or fragment"
)


def read_address(value: object) -> Address:
    if isinstance(value, str) and value.startswith("unix:") and _is_socket(path := value.removeprefix("unix:")):
        return Address("", 0, path)
    host, port = _host_port(value)
    if host is None or port is None:
        raise ValueError(_LISTEN)
    return Address(host, port)


def _is_socket(path: object) -> bool:
    return bool(_match(r"/[^\0\ud800-\udfff]+", path)) and len(str(path).encode()) <= _SOCKET_BYTES_MAX


def read_url(value: object) -> Url:
    found = _match(r"([Hh][Tt][Tt][Pp][Ss]?)://([^/]*)(/(?:(?![?#\\])[!-~])*)?", value)
    host, port = _host_port(found[2]) if found else (None, None)
    if not found or host is None or port == 0:
        raise ValueError(_URL)
    scheme = found[1].lower()
    return Url(scheme, host, port or _PORTS[scheme], found[3] or "/")


def _read_host_name(value: object) -> str:
    host, port = _host_port(value)
    if host is None or port is not None:
        raise ValueError("a Host name such as mcp.example.com, 10.0.0.1 or [::1], without a port")
    return bracketed(host)


def _is_peer(value: object) -> bool:
    host, port = _host_port(value)
    return host is not None and port != 0


def _is_store(value: object) -> bool:
    found = _match(r"rediss?://(?:[^\s/?#@\[\]]*@)?([^/?#@]*)(?:/[0-9]{1,4})?", value)
    return found is not None and _is_peer(found[1])


def _read_size(value: object) -> int:
    found = _match(rf"([0-9]{{1,13}}(?:\.[0-9]{{1,9}})?)({'|'.join(_BYTES)})", value)
    size = round(float(found[1]) * _BYTES[found[2]]) if found else value
    if type(size) is not int or not 2**10 <= size <= 2**40:
        raise ValueError(f"a size such as 64KiB or 1.5GB, in {', '.join(_BYTES)} or plain bytes, from 1KiB to 1024GiB")
    return size


def _read_duration(value: object) -> float:
    bare_zero = type(value) is int and value == 0
    found = _match(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)(ms|s|m|h|d)", "0s" if bare_zero else value)
    seconds = float(found[1]) * _SECONDS[found[2]] if found else DURATION_MAX_S + 1
    if seconds > DURATION_MAX_S:
        raise ValueError("a duration such as 500ms, 10m or 1h, in ms, s, m, h or d, at most a year (365d)")
    return seconds


def _only(allows: Callable[[Any], bool], allowed: str, read: _Reader = lambda value: value) -> _Reader:
    def checked(value: object) -> object:
        if not allows(found := read(value)):
            raise ValueError(allowed)
        return found

    return checked


def _matching(pattern: str, allowed: str, read: _Reader = lambda value: value) -> _Reader:
    return _only(lambda value: _match(pattern, value) is not None, allowed, read)


def _one_of(*choices: str) -> _Reader:
    return _matching("|".join(choices), "one of " + ", ".join(choices))


# The types of fields.
_T = TypeVar("_T")
AtLeastOne: TypeAlias = Annotated[tuple[_T, ...], "at least one"]
Listen = Annotated[Address, read_address]
HttpUrl = Annotated[Url, read_url]
_MORE_THAN_0: Final = "a duration of more than 0, such as 500ms, 1s, 10m or 1h"
Duration = Annotated[float, _only(lambda seconds: seconds > 0, _MORE_THAN_0, _read_duration)]  # seconds
DurationOrZero = Annotated[float, _read_duration]  # seconds
_LONG: Final = "a duration of 1s or more: a shorter stall does not show that a peer has stopped"
Stall = Annotated[float, _only(lambda seconds: seconds >= 1, _LONG, _read_duration)]  # seconds
Size = Annotated[int, _read_size]  # bytes
Memory = Annotated[int, _only(lambda size: size >= 2**20, "a size of 1MiB or more", _read_size)]  # bytes
_COUNT: Final = f"a whole number from 1 to {COUNT_MAX}"
Count = Annotated[int, _only(lambda value: type(value) is int and 1 <= value <= COUNT_MAX, _COUNT)]
_RATE: Final = f"a number of more than 0, such as 0.5 or 10, at most {RATE_MAX}"
Rate = Annotated[float, _only(lambda value: type(value) in (int, float) and 0 < value <= RATE_MAX, _RATE)]  # a second
Switch = Annotated[bool, _only(lambda value: isinstance(value, bool), "true or false")]
_FILE: Final = _matching(r"[^\0]+", "the name of a file")
File = Annotated[NamedFile, _FILE]
LogFile = Annotated[Path, _FILE]  # it need not exist yet
_SOCKET: Final = f"the path of a Unix socket, from / on, of at most {_SOCKET_BYTES_MAX} bytes"
Socket = Annotated[str, _only(_is_socket, _SOCKET)]
Target = Annotated[str, _matching(r"/[!-\"$-~]*", "a path such as /healthz, perhaps with a query")]
HostName = Annotated[str, _read_host_name]  # as in a Host header: lower case, IPv6 in brackets, no port
_HOST: Final = "upstream, preserve, or a fixed host[:port], the port from 1 to 65535"
HostRule = Annotated[str, _only(_is_peer, _HOST)]
Name = Annotated[str, _matching("[a-z0-9][a-z0-9_-]*", "text like [a-z0-9][a-z0-9_-]* (a number in quotes)")]
HeaderName = Annotated[str, _matching(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+", "a header's name such as X-Org")]
Level = Annotated[str, _one_of(*LEVELS)]
FindAgain = Annotated[str, _one_of("credentials", "session")]
Format = Annotated[str, _one_of("json", "text")]
Added = Annotated[str, _one_of("x-forwarded", "forwarded", "via")]
_PREFIX: Final = r"(?:/(?!\.\.?(?:/|$))[A-Za-z0-9._~!$&'()*+,;=:@%-]+)+"
Prefix = Annotated[str, _matching(_PREFIX, "a path such as /research, without . or .. in it or / at its end")]
_ORIGIN: Final = r"(?!http:.*:80$|https:.*:443$)[a-z][a-z0-9+.-]*://([a-z0-9._-]+|\[[0-9a-f:]+\])(:[0-9]{1,5})?"
_BROWSERS: Final = "an Origin as browsers send it, such as https://app.example: lower case, no path, no default port"
Origin = Annotated[str, _matching(_ORIGIN, _BROWSERS)]
_PUBLIC_URL: Final = r"off|https?://([A-Za-z0-9._-]+|\[[0-9A-Fa-f:]+\])(:[0-9]{1,5})?(/[A-Za-z0-9._~!$&'()*+,;=:@%-]+)*"
_OWN: Final = (
    "the gateway's own address as its clients use it, such as https://mcp.example or "
    "https://mcp.example/research; or off"
)
# A bare `off` is YAML's false.
PublicUrl = Annotated[str, _matching(_PUBLIC_URL, _OWN, lambda value: "off" if value is False else value)]
_STORE: Final = "redis:// or rediss://, perhaps user:password@ (percent-encoded), a host, perhaps a port and /NUMBER"
StoreUrl = Annotated[str, _only(_is_store, _STORE)]
