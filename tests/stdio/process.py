"""`taskgate stdio` as a process, its standard streams in the test's hands."""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
WAIT_S: Final = 20.0
GATEWAY: Final = (sys.executable, "-W", "error", "-m", "gateway", "stdio")


def gateway(*server: str, flags: Sequence[str] = ()) -> list[str]:
    """The command line."""
    return [*GATEWAY, *flags, "--", *server]


@contextmanager
def started(
    command: Sequence[str], environment: Mapping[str, str] | None = None, folder: Path = ROOT, stderr: int | None = None
) -> "Iterator[subprocess.Popen[bytes]]":
    """A process with pipes, in a session of its own, which is killed in the end if it still runs."""
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE if stderr is None else stderr,
        env={**os.environ, "PYTHONPATH": str(ROOT), **(environment or {})},
        cwd=folder,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                stream.close()


def ran(
    *server: str, data: bytes = b"", flags: Sequence[str] = (), environment: Mapping[str, str] | None = None
) -> "subprocess.CompletedProcess[bytes]":
    """What a server under the gateway printed, and how it ended."""
    return subprocess.run(
        gateway(*server, flags=flags),
        input=data,
        capture_output=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), **(environment or {})},
        timeout=WAIT_S,
        start_new_session=True,
    )
