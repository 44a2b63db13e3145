"""Memory, CPU time and cores of a process, as Linux tells them. Memory is the resident set, in bytes."""

import contextlib
import functools
import os
from pathlib import Path
from typing import Final, NamedTuple

HAS_PROC: Final = Path("/proc/self/status").exists()


class Cores(NamedTuple):
    """The cores: one for the measured process, another for load and upstream."""

    measured: int | None
    others: int | None


@functools.cache
def cores() -> Cores:
    """The two cores to use, one twice on a machine with one; found once: a pinned process sees only its own."""
    try:
        usable = sorted(os.sched_getaffinity(0))
    except (AttributeError, OSError):
        return Cores(None, None)
    return Cores(usable[-1], usable[0])


def pin(pid: int, core: int | None) -> None:
    """Keep all threads of a process, 0 for this one, on a core, if the system lets us."""
    if core is not None:
        for thread in Path(f"/proc/{pid or 'self'}/task").iterdir():
            with contextlib.suppress(OSError):
                os.sched_setaffinity(int(thread.name), {core})


def rss_bytes(pid: int) -> int:
    """The resident set now."""
    return _status_bytes(pid, "VmRSS:")


def peak_bytes(pid: int) -> int:
    """The largest resident set since `reset_peak`."""
    return _status_bytes(pid, "VmHWM:")


def reset_peak(pid: int) -> None:
    """Let `peak_bytes` begin anew. Where that is not allowed it goes on from the start of the process."""
    with contextlib.suppress(OSError):
        Path(f"/proc/{pid}/clear_refs").write_text("5")


def cpu_seconds(pid: int) -> float:
    threads = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads) / 1e9


def _status_bytes(pid: int, field: str) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    raise LookupError(f"no {field} of process {pid}")
