"""Python's programs as processes that have nothing to import: forks of the tests' own, which has imported all of it.

The child runs the program's own `main`, in a session of its own, with the streams, signals, log, warnings and
environment of a fresh process. A fresh `taskgate` imports for a quarter of a second of CPU, a server of an SDK for up
to one, a fork for none. What an interpreter's own start and end are part of is tested with `tests.launch`.
"""

import asyncio
import gc
import importlib
import logging
import os
import signal
import subprocess
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple, NoReturn

from gateway.__main__ import main
from gateway.cli import tasks_command, try_command  # noqa: F401 (what a fresh process would import first)
from gateway.stdio.stdio_proxy import StdioProxy  # noqa: F401 (likewise)
from tests.launch import NO_AUTHORITIES, POLL_S, ROOT, RUN_S, Running, spawned


class Ended(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


async def forked(*arguments: str, **environment: str) -> Ended:
    """`taskgate` with these arguments, once it has ended. Several may run at a time."""
    with _streams("") as (stdin, *outputs):
        child = Fork(_begun(arguments, stdin, outputs, environment))
        try:
            async with asyncio.timeout(RUN_S):
                while (status := child.poll()) is None:  # noqa: ASYNC110 (nothing announces its end)
                    await asyncio.sleep(POLL_S)
        finally:
            child.kill()
        return Ended(status, *map(_written, outputs))


def ran(*arguments: str, text: str | None = None, **environment: str) -> Ended:
    """The same, `text` on its standard input, without a loop. A warning ends it."""
    with _streams(text or "") as (stdin, *outputs):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            pid = _begun(arguments, stdin, outputs, environment)
        return Ended(Fork(pid).wait(), *map(_written, outputs))


@contextmanager
def _streams(text: str) -> Iterator[list[int]]:
    """Descriptors for the standard streams, the first with that text."""
    found = [os.memfd_create(name) for name in ("stdin", "stdout", "stderr")]
    try:
        os.pwrite(found[0], text.encode(), 0)
        yield found
    finally:
        for one in found:
            os.close(one)


def _written(output: int) -> str:
    return os.pread(output, os.fstat(output).st_size, 0).decode()


def _begun(arguments: Sequence[str], stdin: int, outputs: Sequence[int], environment: Mapping[str, str]) -> int:
    if (pid := _fork()) == 0:
        sys.argv = ["taskgate", *arguments]
        _become(main, outputs[0], outputs[1], {**NO_AUTHORITIES, **environment}, ROOT, stdin)
    return pid


def _fork() -> int:
    """Fork. From Python 3.12 on it warns of other threads: those of the tests hold nothing that a child uses."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


class Fork:
    """A child that runs, with what tests ask of a `subprocess.Popen`."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """The exit status; None if it still runs."""
        if self.returncode is None and (found := os.waitpid(self.pid, os.WNOHANG))[0]:
            self.returncode = os.waitstatus_to_exitcode(found[1])
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """The exit status, once it has ended."""
        deadline = time.monotonic() + (RUN_S if timeout is None else timeout)
        while (status := self.poll()) is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired("a fork", timeout or RUN_S)
            time.sleep(POLL_S)
        return status

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def fork_of(command: Sequence[str], out: int, environment: Mapping[str, str], tree: Path) -> Running:
    """The process of `python -m MODULE` or `-c TEXT`, as a fork; any other command, or another tree, as it is."""
    if command[0] != sys.executable or not {"-m", "-c"} & set(command) or ("-m" in command and tree != ROOT):
        return spawned(command, out, environment, tree)
    at = command.index("-m" if "-m" in command else "-c")
    name, *arguments = command[at + 1 :]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run = _main_of(name) if command[at] == "-m" else partial(exec, name, {"__name__": "__main__"})
    if (pid := _fork()) == 0:
        sys.argv = [name, *arguments]
        warnings.resetwarnings()
        warnings.simplefilter("ignore" if "ignore" in command[:at] else "default")
        _become(run, out, out, environment, tree)
    return Fork(pid)


def _main_of(name: str) -> Callable[[], None]:
    main: Callable[[], None] = importlib.import_module("gateway.__main__" if name == "gateway" else name).main
    return main


_inherited: list[object] = []  # files whose descriptors are others' now: closed, or written to, they would take these


def _set_aside() -> Iterator[object]:
    """The streams and the handlers of every log, which are as in a fresh process then."""
    yield sys.stdin, sys.stdout, sys.stderr
    for logger in (logging.root, *logging.root.manager.loggerDict.values()):
        if isinstance(logger, logging.Logger):
            yield logger.handlers
            logger.handlers, logger.propagate, logger.disabled = [], True, False
            logger.setLevel(logging.WARNING if logger is logging.root else logging.NOTSET)


def _become(
    run: Callable[[], None],
    stdout: int,
    stderr: int,
    environment: Mapping[str, str],
    tree: Path,
    stdin: int | None = None,
) -> NoReturn:
    """In the child: be as an interpreter that has just begun, run, and end as one does."""
    status = 1
    try:
        gc.freeze()  # an inherited socket that is collected here would close another's descriptor
        os.setsid()
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        _inherited.extend(_set_aside())
        given = os.open(os.devnull, os.O_RDONLY) if stdin is None else stdin
        for source, target in ((given, 0), (stdout, 1), (stderr, 2)):
            os.dup2(source, target)
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
        sys.stdin, sys.stdout, sys.stderr = os.fdopen(0), os.fdopen(1, "w"), os.fdopen(2, "w", buffering=1)
        sys.unraisablehook = sys.__unraisablehook__
        sys.set_coroutine_origin_tracking_depth(0)
        os.environ.update(environment)
        os.chdir(tree)
        run()
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    except BaseException:
        traceback.print_exc()
    finally:
        gc.collect()  # what was never awaited or closed says so now
        sys.stdout.flush()
        os._exit(status)
