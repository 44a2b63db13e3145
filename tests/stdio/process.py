"""`taskgate stdio` as a process, its standard streams in the test's hands (tests/launch.py)."""

import subprocess
from collections.abc import Sequence
from typing import Final

from tests.launch import COMMAND, run_bytes

WAIT_S: Final = 60.0  # long, because a machine may be busy


def gateway(*server: str, flags: Sequence[str] = ()) -> list[str]:
    """The command line."""
    return [*COMMAND, "stdio", *flags, "--", *server]


def closing(streams: Sequence[int], command: Sequence[str]) -> list[str]:
    """A command line that closes some of the standard streams 0, 1 and 2 first."""
    return ["sh", "-c", f'exec "$@" {" ".join(f"{number}>&-" for number in streams)}', "sh", *command]


def ran(*server: str, data: bytes = b"", flags: Sequence[str] = ()) -> "subprocess.CompletedProcess[bytes]":
    """What a server under the gateway printed, and how it ended."""
    return run_bytes("stdio", *flags, "--", *server, data=data)
