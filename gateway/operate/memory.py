"""How much memory the process may use: the least limit of the control groups that it is in, as containers have them.

In: what Linux shows of them, version 2 or 1. Out: a number of bytes, and words if the indexes may grow beyond it.
Always: what cannot be read sets no limit.
"""

from contextlib import suppress
from pathlib import Path
from typing import Final

ROOT: Final = Path("/sys/fs/cgroup")
GROUPS: Final = Path("/proc/self/cgroup")


def limit_bytes(root: Path = ROOT, groups: Path = GROUPS) -> int | None:
    """The limit of the process's group, or of one around it; None if there is none.

    In a container the group may be named as outside of it: then only the root is there.
    """
    found = []
    with suppress(OSError):
        for line in groups.read_text().splitlines():
            _, kinds, name = line.split(":", 2)
            if not kinds or "memory" in kinds.split(","):
                top, file = (root / "memory", "memory.limit_in_bytes") if kinds else (root, "memory.max")
                group = top / name.lstrip("/")
                found += [_read(each / file) for each in (group, *group.parents) if each.is_relative_to(top)]
    return min((limit for limit in found if limit is not None), default=None)


def _read(file: Path) -> int | None:
    with suppress(OSError, ValueError):  # "max", or no such file
        return int(file.read_text())
    return None


def problem(memory_bytes_max: int) -> str:
    """What is wrong with `index.memory_bytes_max` here; empty if nothing is."""
    limit = limit_bytes()
    if limit is None or memory_bytes_max < limit:
        return ""
    return (
        f"index.memory_bytes_max ({memory_bytes_max >> 20} MiB) is not below the memory that this container may use "
        f"({limit >> 20} MiB): lower it, or the process is killed when its indexes grow"
    )
