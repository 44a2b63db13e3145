"""The server's process under the gateway: how it is started, signalled and told of (DESIGN 11.4 to 11.6)."""

import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from subprocess import DEVNULL, PIPE, STDOUT

import pytest

from tests import forked
from tests.bench.proc import peak_bytes
from tests.launch import COMMAND, ROOT, held_port, is_ready, listening, piped, port_of
from tests.stdio.harness import call
from tests.stdio.process import WAIT_S, closing, gateway, ran, talking, with_admin
from tests.tools import open_terminal

LINUX = sys.platform.startswith("linux")


CLOSED = [(0,), (1,), (2,), (0, 1, 2)]
NO_FILE = "cannot be read: No such file"
PROXY = ["--upstream", "http://127.0.0.1:1/mcp", "--check"]
# What is asked for, and how it ends: status, output, and words among the errors.
ENDS = {
    **{
        script: (["stdio", "--", "sh", "-c", f"echo out; echo err >&2; {script}"], status, "out\n", "err\n")
        for script, status in (
            ("exit 0", 0), ("exit 7", 7), ("kill -9 $$", -9), ("kill -TERM $$", -15), ("kill -SEGV $$", -11),
            ("kill -INT $$", -2),
        )
    },
    "no such command": (
        ["stdio", "--", "no-such-command", "x"], 127, "",
        "taskgate: cannot start 'no-such-command': No such file or directory\n",
    ),
    "no program": (
        ["stdio", "--", "/etc/passwd"], 126, "", "taskgate: cannot start '/etc/passwd': Permission denied\n"
    ),
    "no server": (["stdio"], 2, "", "behind --"),
    "nothing behind the dashes": (["stdio", "--"], 2, "", "behind --"),
    "a flag and no server": (["stdio", "--config", "x"], 2, "", "behind --"),
    "flags and no server": (["stdio", "--admin", "a:1", "--"], 2, "", "behind --"),
    "a server behind dashes": (["stdio", "--", "echo", "-n", "--", "a"], 0, "-- a", ""),
    "a server as the first word": (["stdio", "echo", "-n", "--", "a"], 0, "-- a", ""),
    "no file": (["stdio", "--config", "no-such-file", "--", "true"], 2, "", NO_FILE),
    "no address of a page": (["stdio", "--admin", "nowhere", "--", "true"], 2, "", "--admin: expected HOST:PORT"),
}  # fmt: skip


@pytest.mark.parametrize("what", ENDS)
def test_how_it_ends(what: str) -> None:
    arguments, status, out, words = ENDS[what]
    ended = forked.ran(*arguments)
    assert (ended.returncode, ended.stdout) == (status, out)
    assert words in ended.stderr and bool(words) == bool(ended.stderr)


AS_EVER = [ENDS["exit 7"], ENDS["kill -TERM $$"], ENDS["no such command"], (["--config", "none"], 2, "", NO_FILE)]


@pytest.mark.parametrize(
    ("streams", "end"),
    [
        *((streams, end) for streams in CLOSED for end in AS_EVER),
        (CLOSED[-1], ENDS["no file"]),
        (CLOSED[-1], ENDS["no server"]),
        (CLOSED[0], (["--config", "-", "--check"], 2, "", "taskgate: ")),
        (CLOSED[-1], (PROXY, 0, "", "")),
    ],
)
def test_with_standard_streams_closed_it_ends_as_ever(
    streams: tuple[int, ...], end: tuple[list[str], int, str, str]
) -> None:
    arguments, status, out, words = end
    line = closing(streams, [*COMMAND, *arguments])
    ended = subprocess.run(line, input=b"", capture_output=True, timeout=WAIT_S, cwd=ROOT)
    assert ended.returncode == status
    assert ended.stdout.decode() == ("" if 1 in streams else out), "what is said stays where it belongs"
    assert (ended.stderr == b"") if 2 in streams or not words else (words.encode() in ended.stderr)
    assert b"Traceback" not in ended.stderr


@pytest.mark.skipif(not LINUX, reason="/proc")
@pytest.mark.parametrize("streams", CLOSED)
def test_with_standard_streams_closed_it_serves_and_nothing_takes_their_places(streams: tuple[int, ...]) -> None:
    with held_port() as listen, held_port() as admin:
        at = [f"127.0.0.1:{port_of(sock)}" for sock in (listen, admin)]
        flags = ["--upstream", "http://127.0.0.1:1/mcp", "--listen", at[0], "--admin", at[1]]
        with piped(closing(streams, [*COMMAND, *flags])) as process:
            deadline = time.monotonic() + WAIT_S
            while not is_ready(port_of(admin)):
                assert process.poll() is None and time.monotonic() < deadline
                time.sleep(0.02)
            for number in streams:
                assert str(Path(f"/proc/{process.pid}/fd/{number}").readlink()) == os.devnull
            process.terminate()
            assert process.wait(WAIT_S) == 0


@pytest.mark.parametrize(
    ("arguments", "status", "unbuffered"),
    [
        (["stdio", "--", "no-such-command"], 127, ""),
        (["stdio", "--", "no-such-command"], 127, "1"),
        (["stdio", "--", "sh", "-c", "exit 7"], 7, ""),
        (["--config", "/no/such/file"], 2, "1"),
        (["--no-such-flag"], 2, ""),
    ],
)
def test_an_error_that_nobody_reads_has_its_status(arguments: list[str], status: int, unbuffered: str) -> None:
    """What Python had kept of it failed when it ended, with a status of its own."""
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    with Path("/dev/full").open("wb") as full:
        ended = subprocess.run(
            [*COMMAND, *arguments], env=environment, input=b"", stderr=full, timeout=WAIT_S, cwd=ROOT
        )
    assert ended.returncode == status


def test_an_admin_listener_where_one_is_asked_for_and_a_command_whose_name_is_no_utf_8(tmp_path: Path) -> None:
    command = os.fsencode(tmp_path) + b"/c\xffat\x85"
    Path(os.fsdecode(command)).symlink_to("/bin/cat")
    with with_admin(os.fsdecode(command)) as (talk, get):
        assert talk.say(call(1, "ping")) == [call(1, "ping")]
        shown = json.loads(get("/page/status.json"))
        assert shown["upstreams"][0]["url"] == f"{tmp_path}/c\\udcffat\\udc85"
        assert "Filtered lists at once" in json.dumps(shown)
        for path in ("/healthz", "/readyz", "/"):
            get(path)
        metrics = get("/metrics")
        assert 'taskgate_upstream_requests_total{method="ping",upstream="stdio"} 1.0' in metrics
        assert "taskgate_queries_in_flight_max 10000.0" in metrics and "taskgate_upstream_up" in metrics
        assert talk.finish() == 0


@pytest.mark.parametrize(
    ("text", "flags", "words"),
    [
        (
            "listen: 127.0.0.1:1\nadmin: {}\nindex: {page_size: 0}\n",
            [],
            ["listen", "admin", "log, index, limits", ":3: index"],
        ),
        ("upstreams: []\ntls: {}\n", [], ["upstreams", "tls", "unknown key"]),
        ("log: {file: made.log}\nindex: {page_size: 0}\n", [], ["index.page_size"]),
        (
            "log: {file: made.log}\nlimits: {held_bytes_max: 1MiB}\n",
            [],
            ["limits.held_bytes_max", "inspected_body_bytes_max"],
        ),
        ("log: {file: no/such/folder}\n", [], ["log.file", "can be written", "'no/such/folder'", "No such file"]),
        ("log: {file: none/made.log}\nindex: {page_size: 0}\n", [], ["log.file"]),
        ("log: {file: made.log}\n", ["--admin", "9090"], ["--admin"]),
        ("", [], ["empty"]),
    ],
)
def test_a_wrong_configuration_starts_nothing_and_opens_no_log(
    tmp_path: Path, text: str, flags: list[str], words: list[str]
) -> None:
    (file := tmp_path / "stdio.yaml").write_text(text)
    ended = ran("touch", str(tmp_path / "started"), flags=["--config", str(file), *flags])
    assert (ended.returncode, ended.stdout) == (2, "")
    assert list(tmp_path.iterdir()) == [file]
    for word in words:
        assert word in ended.stderr


def test_an_admin_address_that_is_taken_starts_nothing_for_long(tmp_path: Path) -> None:
    with listening() as taken, socket.socket(socket.AF_UNIX) as also:
        also.bind(path := str(tmp_path / "admin.sock"))
        also.listen()
        for given, named in ((f"127.0.0.1:{port_of(taken)}",) * 2, (f"unix:{path}", path)):
            ended = ran("sleep", "600", flags=["--admin", given])
            assert (ended.returncode, ended.stdout) == (1, "")
            assert re.search(f"cannot listen on [^;]*{re.escape(named)}: ", ended.stderr)


def test_the_server_has_the_environment_the_folder_and_the_open_files_of_the_gateway(tmp_path: Path) -> None:
    reads, writes = os.pipe()
    os.set_blocking(reads, False)
    script = (
        "import os, sys; print(os.getcwd(), sorted(os.environb.items()), sys.argv); os.write(int(sys.argv[1]), b'x')"
    )
    command = [sys.executable, "-S", "-E", "-c", script, str(writes), "one two", "--", "*"]
    given = {"PATH": os.environ["PATH"], "PYTHONPATH": os.environ.get("PYTHONPATH", ""), "X": "1"}
    said = []
    for line in (command, [sys.executable, "-m", "gateway", "stdio", "--", *command]):
        done = subprocess.run(
            line, cwd=tmp_path, env=given, stdin=DEVNULL, capture_output=True, pass_fds=[writes], timeout=WAIT_S
        )
        said.append((done.returncode, done.stdout, done.stderr, os.read(reads, 10)))
    os.close(reads)
    os.close(writes)
    assert said[0] == said[1]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_goes_on_to_the_server_which_decides(number: signal.Signals) -> None:
    name = number.name.removeprefix("SIG")
    script = f"trap 'echo got {name}; exit 5' {name}; echo up; while :; do sleep 0.01; done"
    with talking("sh", "-c", script) as talk:
        assert talk.stdout.readline() == b"up\n"
        talk.process.send_signal(number)
        assert talk.stdout.read() == f"got {name}\n".encode()
        assert talk.wait() == 5


@pytest.mark.skipif(not LINUX, reason="only Linux says who sent a signal")
def test_an_interrupt_reaches_the_server_once_whoever_sends_it() -> None:
    """Ctrl-C of the gateway's own terminal, which goes to both; then a program's, to the gateway alone: it was lost."""
    script = "trap 'echo got' INT; trap 'exit 5' TERM; echo up; while :; do sleep 0.01; done"
    keyboard, terminal = open_terminal()
    with_terminal = ["sh", "-c", 'exec 9<>"$0" 9>&-; exec "$@"', os.ttyname(terminal)]  # a session takes the first
    with piped([*with_terminal, *gateway("sh", "-c", script)]) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        os.write(keyboard, b"\x03")
        assert process.stdout.readline() == b"got\n"
        taken(process, signal.SIGINT)
        process.send_signal(signal.SIGINT)
        assert select.select([process.stdout], [], [], WAIT_S)[0], "the program's interrupt is lost"
        assert process.stdout.readline() == b"got\n"
        process.terminate()
        assert process.stdout.read() == b""
        assert process.wait(WAIT_S) == 5
    os.close(keyboard)
    os.close(terminal)


def taken(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """Wait until the process has taken this signal: a second one that comes while the first waits is the same one."""
    deadline = time.monotonic() + WAIT_S
    while True:
        status = Path(f"/proc/{process.pid}/status").read_text()
        if not any(int(mask, 16) >> (number - 1) & 1 for mask in re.findall(r"(?:Sig|Shd)Pnd:\s+(\w+)", status)):
            return
        assert time.monotonic() < deadline, f"{number.name} is not taken"
        time.sleep(0.005)


def test_a_signal_while_the_gateway_starts_is_not_lost() -> None:
    for delay_s in (0.0, 0.02, 0.05, 0.1, 0.2):
        with talking("sleep", "60") as talk:
            time.sleep(delay_s)
            talk.process.terminate()
            assert talk.wait() == -signal.SIGTERM


@pytest.mark.skipif(not LINUX, reason="reads the peak of memory in /proc")
def test_a_line_of_any_size_costs_no_memory() -> None:
    """64 MB in one line: the process holds what may be read of a line, 2 MiB, and pieces."""
    size = 64_000_000
    with talking("cat") as talk:
        assert talk.say(call(1, "ping")) == [call(1, "ping")]
        before = peak_bytes(talk.process.pid)
        writing = threading.Thread(target=talk.stdin.write, args=(b"x" * size + b"\n",))
        writing.start()
        received = 0
        while received < size:
            received += len(os.read(talk.stdout.fileno(), 1 << 20))
        writing.join()
        assert peak_bytes(talk.process.pid) - before < 24_000_000


def test_standard_streams_may_be_files(tmp_path: Path) -> None:
    there, back = tmp_path / "in", tmp_path / "out"
    there.write_bytes(b"x" * 200_000 + b"\nlast")
    with there.open("rb") as source, back.open("wb") as sink:
        done = subprocess.run(gateway("cat"), stdin=source, stdout=sink, timeout=WAIT_S)
    assert (done.returncode, back.read_bytes()) == (0, there.read_bytes())


def test_standard_error_stays_in_its_mode_when_it_is_standard_output_too() -> None:
    """A pipe that several processes write to, as with 2>&1: who finds it full must wait."""
    script = "python3 -c 'import sys; sys.stderr.write(\"e\" * 1000000); sys.stderr.flush()'; exit 4"
    line = gateway("sh", "-c", script)
    done = subprocess.run(line, stdin=DEVNULL, stdout=PIPE, stderr=STDOUT, timeout=WAIT_S)
    assert (done.returncode, len(done.stdout)) == (4, 1_000_000)


def test_what_a_server_leaves_running_does_not_keep_the_gateway() -> None:
    """Its own child holds its output open."""
    with talking("sh", "-c", "sleep 600 & echo $!; exit 3") as talk:
        left = int(talk.stdout.readline())
        try:
            assert talk.wait() == 3
        finally:
            os.kill(left, signal.SIGKILL)


@pytest.mark.skipif(not LINUX, reason="only Linux has a signal for it")
def test_a_server_that_does_not_end_by_itself_is_killed_with_the_gateway() -> None:
    script = "trap '' TERM HUP INT; echo $$; while :; do sleep 0.01; done"
    with talking("sh", "-c", script) as talk:
        server = int(talk.stdout.readline())
        talk.process.kill()
        assert talk.wait() == -signal.SIGKILL
        deadline = time.monotonic() + WAIT_S
        while Path(f"/proc/{server}").exists() and "State:\tZ" not in Path(f"/proc/{server}/status").read_text():
            assert time.monotonic() < deadline
            time.sleep(0.01)
