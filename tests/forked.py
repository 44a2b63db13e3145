"""`taskgate` as a process that has nothing to import: a fork of the tests' own, which has imported all of it.

In: arguments. Out: how it ended, and what it wrote. Always: the child runs the command's own `main`, in a session of
its own, with the streams, signals, log, warnings and environment of a fresh process; it ends before anything that it
inherited does. A fresh process imports for a quarter of a second of CPU, this one for none. What an interpreter's own
start and end are part of (imports, a terminal, a signal on the way) is tested with `tests.launch.command`.
"""

import asyncio
import gc
import logging
import os
import signal
import sys
import traceback
from typing import NamedTuple, NoReturn

from gateway.__main__ import main
from gateway.client import flags  # noqa: F401 (what a fresh process would import first)
from tests.launch import NO_AUTHORITIES, ROOT, RUN_S


class Ended(NamedTuple):
    """Exit status and output."""

    returncode: int
    stdout: str
    stderr: str


async def forked(*arguments: str, **environment: str) -> Ended:
    """`taskgate` with these arguments, once it has ended. Several may run at a time."""
    outputs = [os.memfd_create(name) for name in ("stdout", "stderr")]
    try:
        if (pid := os.fork()) == 0:
            _become(arguments, outputs, environment)
        status = await _ended(pid)
        stdout, stderr = (os.pread(output, os.fstat(output).st_size, 0).decode() for output in outputs)
    finally:
        for output in outputs:
            os.close(output)
    return Ended(status, stdout, stderr)


async def _ended(pid: int) -> int:
    """The exit status of a child, which is killed if this is cancelled, or if it runs for too long."""
    loop, over = asyncio.get_running_loop(), asyncio.Event()
    descriptor = os.pidfd_open(pid)
    loop.add_reader(descriptor, over.set)
    try:
        async with asyncio.timeout(RUN_S):
            await over.wait()
    except BaseException:
        os.kill(pid, signal.SIGKILL)
        raise
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)
        status = _reaped(pid)
    return status


def _reaped(pid: int) -> int:
    """The exit status of a child that has ended, or is about to."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _become(arguments: tuple[str, ...], outputs: list[int], environment: dict[str, str]) -> NoReturn:
    """In the child: what the interpreter of `python -m gateway` is, runs and ends as."""
    status = 1
    try:
        gc.freeze()  # an inherited socket that is collected here would close another's descriptor
        os.setsid()
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        for source, target in ((os.open(os.devnull, os.O_RDONLY), 0), (outputs[0], 1), (outputs[1], 2)):
            os.dup2(source, target)
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
        sys.stdin, sys.stdout, sys.stderr = os.fdopen(0), os.fdopen(1, "w"), os.fdopen(2, "w", buffering=1)
        sys.unraisablehook = sys.__unraisablehook__
        sys.set_coroutine_origin_tracking_depth(0)
        logging.root.handlers.clear()
        logging.root.setLevel(logging.WARNING)
        os.environ.update(NO_AUTHORITIES | environment)
        os.chdir(ROOT)
        sys.argv = ["taskgate", *arguments]
        main()
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    except BaseException:
        traceback.print_exc()
    finally:
        gc.collect()  # what was never awaited or closed says so now
        sys.stdout.flush()
        os._exit(status)
