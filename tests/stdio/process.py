"""`taskgate stdio` as a process, its standard streams in the test's hands (tests/launch.py)."""

import json
import subprocess
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Final

from tests import forked
from tests.launch import COMMAND, held_port, piped, port_of

WAIT_S: Final = 60.0  # long, because a machine may be busy


def gateway(*server: str, flags: Sequence[str] = ()) -> list[str]:
    return [*COMMAND, "stdio", *flags, "--", *server]


def configured(folder: Path, **settings: Any) -> list[str]:
    """The flags of a gateway with this configuration."""
    file = folder / "config.yaml"
    file.write_text(json.dumps(settings))  # JSON is YAML
    return ["--config", str(file)]


def closing(streams: Sequence[int], command: Sequence[str]) -> list[str]:
    """A command line that closes some of the standard streams 0, 1 and 2 first."""
    return ["sh", "-c", f'exec "$@" {" ".join(f"{number}>&-" for number in streams)}', "sh", *command]


def ran(*server: str, data: bytes = b"", flags: Sequence[str] = ()) -> forked.Ended:
    """What a server under the gateway printed, and how it ended. The gateway is a fork."""
    return forked.ran("stdio", *flags, "--", *server, text=data.decode())


class Talk:
    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        assert process.stdin is not None and process.stdout is not None
        self.process = process
        self.stdin: IO[bytes] = process.stdin
        self.stdout: IO[bytes] = process.stdout

    def say(self, *lines: bytes) -> list[bytes]:
        """Write these lines; as many that come back."""
        self.stdin.write(b"".join(lines))
        self.stdin.flush()
        return [self.stdout.readline() for _ in lines]

    def wait(self) -> int:
        """The exit status, once it has ended."""
        return self.process.wait(WAIT_S)

    def finish(self) -> int:
        self.stdin.close()
        return self.wait()


@contextmanager
def talking(*server: str, flags: Sequence[str] = ()) -> Iterator[Talk]:
    with piped(gateway(*server, flags=flags)) as process:
        yield Talk(process)


@contextmanager
def with_admin(*server: str, flags: Sequence[str] = ()) -> Iterator[tuple[Talk, Callable[[str], str]]]:
    """The same with an admin listener, and what a GET there is answered."""
    with held_port() as held:
        at = f"127.0.0.1:{port_of(held)}"

        def get(path: str) -> str:
            with urllib.request.urlopen(f"http://{at}{path}", timeout=WAIT_S) as answer:
                return str(answer.read().decode())

        with talking(*server, flags=[*flags, "--admin", at]) as talk:
            yield talk, get
