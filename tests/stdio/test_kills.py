"""Either side is killed at random moments, STDIO_KILLS or twelve: nothing is left (DESIGN 11.4)."""

import os
import random
import re
import signal
import sys
import time
import uuid
from pathlib import Path
from typing import Final

import pytest

from tests.launch import ROOT
from tests.stdio.harness import QUERY_ALL
from tests.stdio.process import WAIT_S, talking
from tests.stdio.talker import line

KILLS: Final = int(os.environ.get("STDIO_KILLS", "12"))
SERVER: Final = (sys.executable, "-S", "-E", str(ROOT / "tests/stdio/talker.py"))
MARK: Final = "TASKGATE_TESTS_KILL"
ANSWER: Final = b'{"jsonrpc":"2.0","id":"q",'
LATEST_S: Final = 0.15  # after the server's first word

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks for processes in /proc")


def left(mark: str) -> list[str]:
    """The processes that were started with that mark."""
    found = []
    for each in Path("/proc").glob("[0-9]*"):
        try:
            if f"{MARK}={mark}".encode() in (each / "environ").read_bytes():
                found.append((each / "cmdline").read_text())
        except OSError:
            continue  # it has ended, or is another user's
    return found


def check_words(data: bytes) -> None:
    """All lines but the last are the server's, in their order, and answers between them; the last may be cut short."""
    lines = re.findall(rb"[^\n]*\n|[^\n]+", data)
    said = [each for each in lines if not each.startswith(ANSWER) and not ANSWER.startswith(each)]
    for number, each in enumerate(said):
        expected = line(number)
        assert each == expected or (number == len(said) - 1 and expected.startswith(each)), (number, each[:200])


@pytest.mark.parametrize("seed", range(KILLS))
def test_nothing_is_left_whoever_is_killed(seed: int) -> None:
    rng = random.Random(seed)
    victim = rng.choice(("gateway", "server", "input"))
    number = rng.choice((signal.SIGKILL, signal.SIGTERM))
    mark = uuid.uuid4().hex
    with talking(*SERVER, environment={MARK: mark}) as talk:
        server = int(talk.stdout.readline())
        os.set_blocking(talk.stdout.fileno(), False)
        talk.stdin.write(QUERY_ALL * 3)
        talk.stdin.flush()
        data, ends_at = b"", time.monotonic() + rng.uniform(0, LATEST_S)
        while time.monotonic() < ends_at:
            data += talk.stdout.read(1 << 16) or b""
            time.sleep(0.001)
        if victim == "input":
            talk.stdin.close()
        else:
            os.kill(server if victim == "server" else talk.process.pid, number)
        os.set_blocking(talk.stdout.fileno(), True)
        data += talk.stdout.read()
        assert talk.wait() == (0 if victim == "input" else -number)
        deadline = time.monotonic() + WAIT_S
        while found := left(mark):
            assert time.monotonic() < deadline, found
            time.sleep(0.01)
        assert b"Traceback" not in talk.stderr.read()
    check_words(data)
