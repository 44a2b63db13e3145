"""File descriptors: takes as many as the system gives, and says how many connections of clients they suffice for.

In: `limits.connections_max`. Out: the number of connections that can be kept. Always: each client may need a connection
to an upstream too; some descriptors stay free for everything else. Connections beyond the number get a 503.
"""

import logging
import os
from typing import Final

from gateway.transport.listener import TURNED_AWAY_MAX

log = logging.getLogger("taskgate")

_OTHERS: Final = 64  # descriptors for listeners, the log, the admin listener, DNS
_RESERVED: Final = _OTHERS + TURNED_AWAY_MAX


def connections_kept(connections_max: int) -> int:
    """Raise the limit of descriptors as far as needed and allowed. Returns how many clients can then be connected."""
    try:
        import resource
    except ImportError:  # not Unix, so there is no such limit to raise
        return connections_max
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * connections_max + _RESERVED
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return connections_max
    kept = max(1, (soft - _RESERVED) // 2)
    extra = {"connections_max": connections_max, "descriptors": soft, "kept": kept}
    log.warning("limits.connections_max cannot be kept: too few file descriptors (ulimit -n, LimitNOFILE)", extra=extra)
    return kept


def are_exhausted() -> bool:
    """Whether no descriptor is left, so that no connection can be accepted."""
    try:
        os.close(os.open(os.devnull, os.O_RDONLY))
    except OSError:
        return True
    return False
