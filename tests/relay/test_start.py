"""The beginning and the end of a process: signals at any moment, what systemd is told, outputs that take nothing."""

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from random import Random
from typing import Final

import pytest

from tests.launch import COMMAND, ROOT, Gateway, Gateways, eventually, is_ready, listening, port_of, ports, settings
from tests.tools import missing

MOMENTS: Final = int(os.environ.get("START_SIGNALS", "2"))  # of each kind
START_S: Final = 0.8  # of the processor: a little more than a start takes
BLOCKING: Final = ("env", "--block-signal=HUP,INT,TERM")  # as the image does: no program catches a signal sooner
SHAPES: Final = {"plain": (), "PID 1": ("unshare", "--pid", "--fork", "--kill-child")}
RELOADED: Final = "reloaded", "reload refused, nothing has changed"


def bit_of(pid: int, mask: str, number: signal.Signals) -> bool:
    """Whether a mask of signals of a process, as /proc has it, has this one."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    [value] = [line.split()[1] for line in lines if line.startswith(f"{mask}:")]
    return bool(int(value, 16) >> (number - 1) & 1)


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def worked_s(pid: int) -> float:
    """How long a process has had a processor: on a busy machine its start is as long as ever by that."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


def handles(pid: int, number: signal.Signals) -> bool:
    return bit_of(pid, "SigBlk", number) or bit_of(pid, "SigCgt", number)


@asynccontextmanager
async def begun(gateways: Gateways, shape: str, upstream: int) -> AsyncIterator[tuple[Gateway, int]]:
    """A gateway in its start, and its pid."""
    if shape == "PID 1" and (os.geteuid() != 0 or shutil.which("unshare") is None):
        missing("unshare needs root")
    with ports() as (listen, admin):
        config = settings(listen, admin, upstream, {"log": {"level": "info"}})
        with gateways.starting(config, before=(*SHAPES[shape], *BLOCKING)) as gateway:
            pid = gateway.running.popen.pid
            if SHAPES[shape]:
                await eventually(lambda: bool(children_of(pid)), "a child")
                [pid] = children_of(pid)
            await eventually(lambda: handles(pid, signal.SIGHUP), "signals that are blocked")
            yield gateway, pid


def told(gateway: Gateway) -> list[str]:
    return [line["message"] for line in gateway.lines()]


@pytest.mark.parametrize("moment", range(MOMENTS))
@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM])
@pytest.mark.parametrize("shape", SHAPES)
async def test_no_signal_of_a_start_is_lost_or_ends_it_wrongly(
    fresh_gateways: Gateways, shape: str, number: signal.Signals, moment: int
) -> None:
    """SIGHUP ended it, with a status that systemd takes for a clean end; as PID 1 it never heard of SIGTERM."""
    with listening() as upstream:
        async with begun(fresh_gateways, shape, port_of(upstream)) as (gateway, pid):
            at = START_S * Random(moment).random()
            await eventually(lambda: worked_s(pid) >= at or "serving" in told(gateway), "the moment")
            os.kill(pid, number)
            if number is signal.SIGHUP:
                await eventually(lambda: any(line in RELOADED for line in told(gateway)), "a line of the reload")
                assert [line for line in told(gateway) if line in RELOADED] == ["reloaded"]
                assert is_ready(gateway.admin)
                os.kill(pid, signal.SIGTERM)
            assert await gateway.exits() == 0
            assert told(gateway)[-1:] in ([], ["stopped"])  # all are lines of JSON


@pytest.fixture(params=["a path", "an abstract name"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[socket.socket, str]]:
    """The end of a service manager, and what it puts into NOTIFY_SOCKET."""
    name = str(tmp_path / "notify") if request.param == "a path" else f"@{tmp_path}"
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) as sock:
        sock.bind(f"\0{name[1:]}" if name.startswith("@") else name)
        sock.settimeout(30)
        yield sock, name


async def test_systemd_is_told_of_a_start_a_reload_and_an_end(
    gateways: Gateways, manager: tuple[socket.socket, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """sd_notify(3), and systemd.service(5) on Type=notify-reload."""
    sock, name = manager
    monkeypatch.setenv("NOTIFY_SOCKET", name)

    async def heard() -> list[str]:
        return (await asyncio.to_thread(sock.recv, 4096)).decode().split("\n")

    limits = {"shutdown_delay": "1s"}
    with listening() as upstream, gateways.process(port_of(upstream), limits=limits) as gateway:
        assert await heard() == ["READY=1"]
        for text in (gateway.file.read_text() if gateway.file else "", "no configuration"):
            assert gateway.file is not None
            gateway.file.write_text(text)
            gateway.signal(signal.SIGHUP)
            reloading, since = await heard()
            assert reloading == "RELOADING=1"
            assert since.startswith("MONOTONIC_USEC=") and since.partition("=")[2].isdigit()
            assert await heard() == ["READY=1"]
        gateway.signal(signal.SIGTERM)
        assert await heard() == ["STOPPING=1"]
        gateway.signal(signal.SIGHUP)
        assert await gateway.exits() == 0
        sock.setblocking(False)
        with pytest.raises(BlockingIOError):  # what ends is not ready again
            sock.recv(1)


@pytest.mark.parametrize("flag", ["--version", "--help"])
def test_what_only_prints_loads_nothing_that_serves(flag: str) -> None:
    program = (
        "import sys\nfrom gateway.__main__ import main\ntry:\n main()\nexcept SystemExit:\n"
        " print(*sys.modules, file=sys.stderr)"
    )
    ended = subprocess.run([sys.executable, "-c", program, flag], cwd=ROOT, capture_output=True, text=True, timeout=60)
    loaded = set(ended.stderr.split())
    assert "gateway.__main__" in loaded and ended.stdout
    assert not loaded & {"asyncio", "ssl", "aiohttp", "httptools", "uvloop", "gateway.app", "gateway.proxy"}


PRINTING: Final = [
    "--version",
    "--help",
    "--check --upstream http://127.0.0.1:1/mcp",
    "try --help",
    "tasks --help",
    "demo --help",
]


@pytest.mark.parametrize(("flags", "buffering"), [*zip(PRINTING, ("", "1") * 3, strict=True)])
def test_an_output_that_takes_nothing_is_one_line_and_one_that_nobody_reads_ends_quietly(
    flags: str, buffering: str
) -> None:
    """Each was a traceback, or success."""
    environment, (reads, nobody) = {**os.environ, "PYTHONUNBUFFERED": buffering}, os.pipe()
    os.close(reads)
    said = "taskgate: standard output cannot be written: No space left on device\n"
    for out, ends in ((os.open("/dev/full", os.O_WRONLY), (2, said)), (nobody, (0, ""))):
        line, pipe = [*COMMAND, *flags.split()], subprocess.PIPE
        with os.fdopen(out, "w") as stdout:
            ended = subprocess.run(line, cwd=ROOT, env=environment, stdout=stdout, stderr=pipe, text=True, timeout=60)
        assert (ended.returncode, ended.stderr) == ends
