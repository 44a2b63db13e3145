"""The server's process: its start, the signals that it gets, and its exit status. On Linux it ends with the gateway.

It is started before the rest of the gateway is imported, so that both come up at once: so this file imports little.
"""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Final, NamedTuple, NoReturn

NOT_FOUND, NOT_STARTED = 127, 126  # exit statuses, as a shell's
_SIGNALLED: Final = 128  # added to the number of a signal that did not end this process
_PASSED_ON: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_PR_SET_PDEATHSIG: Final = 1
_SI_USER: Final = 0  # a program sent the signal; the codes above it are the kernel's own (sigaction(2))


class NotStarted(Exception):
    """The command cannot be started. `status` is the exit status that says so."""

    def __init__(self, command: str, error: OSError) -> None:
        super().__init__(f"cannot start {command!r}: {error.strerror or error}")
        self.status = NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_STARTED


class Streams(NamedTuple):
    """The descriptors on both sides of the gateway. No two are the same."""

    from_client: int
    to_client: int
    from_server: int
    to_server: int


class Child:
    def __init__(self, command: Sequence[str]) -> None:
        self.name = command[0]
        self._early: list[int] | None = []  # signals, until it has been started
        from_client, to_client = _aside()
        mask = _interrupts_wait()
        for number in _PASSED_ON:
            if signal.getsignal(number) != signal.SIG_IGN:  # nohup ignores SIGHUP
                signal.signal(number, self._pass_on)
        try:
            self._process = subprocess.Popen(
                command,
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                close_fds=False,
                env=_environment(),
                preexec_fn=_prepared(os.getpid(), mask),
            )
        except OSError as error:
            raise NotStarted(command[0], error) from None
        early, self._early = self._early, None
        for came in early:
            self._pass_on(came, None)
        if mask is not None:
            threading.Thread(target=self._pass_on_interrupts, name="interrupts", daemon=True).start()
        assert self._process.stdin is not None and self._process.stdout is not None
        from_server, to_server = os.dup(self._process.stdout.fileno()), os.dup(self._process.stdin.fileno())
        self._process.stdin.close()
        self._process.stdout.close()
        self.streams = Streams(from_client, to_client, from_server, to_server)

    def _pass_on(self, number: int, _: FrameType | None) -> None:
        if self._early is not None:
            self._early.append(number)
        elif not (number == signal.SIGINT and _came_from_terminal()):
            self._process.send_signal(number)

    def _pass_on_interrupts(self) -> None:
        """Pass on the interrupts that a program sends. A terminal sends its own to the server too (DESIGN 11.4)."""
        while True:
            if signal.sigwaitinfo({signal.SIGINT}).si_code <= _SI_USER:
                self._process.send_signal(signal.SIGINT)

    def on_end(self, told: Callable[[int], None]) -> None:
        """Call `told` in another thread once it has ended: with its exit status, or minus the number of its signal."""
        threading.Thread(target=lambda: told(self._process.wait()), name="wait", daemon=True).start()

    def terminate(self) -> None:
        self._process.terminate()


def end_as(status: int) -> NoReturn:
    """End this process as another has ended: with its exit status, or by its signal."""
    with suppress(OSError):  # nobody reads it
        sys.stderr.flush()
    if status < 0:
        import resource

        # Where the signal writes a core file, the server has written its own already.
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
        if -status != signal.SIGKILL:
            signal.signal(-status, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {-status})
        signal.raise_signal(-status)
        status = _SIGNALLED - status
    os._exit(status)  # threads that still read or write are not waited for


def _aside() -> tuple[int, int]:
    """Standard input and output, moved aside: 0 is empty from then on, 1 is standard error, where stray prints go."""
    aside = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return aside


def _environment() -> dict[str, str]:
    """The environment that this process was given, without the LC_CTYPE that Python may have added (PEP 538)."""
    given = dict(os.environ)
    with suppress(OSError):
        if b"\0LC_CTYPE=" not in b"\0" + Path("/proc/self/environ").read_bytes():
            given.pop("LC_CTYPE", None)
    return given


def _interrupts_wait() -> set[int] | None:
    """Have interrupts wait for a thread, which learns who sent them. Returns the former mask; None if none can."""
    if not sys.platform.startswith("linux") or signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        return None
    return {int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})}


def _prepared(parent: int, mask: set[int] | None) -> Callable[[], None] | None:
    """What the server's process runs first: it sets this mask, and is killed with the gateway. None if not Linux."""
    if not sys.platform.startswith("linux"):
        return None
    import ctypes

    prctl = ctypes.CDLL(None, use_errno=True).prctl

    def prepare() -> None:
        if mask is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(_SIGNALLED + signal.SIGKILL)

    return prepare


def _came_from_terminal() -> bool:
    """Whether a terminal may have sent this interrupt, on systems that do not tell: then the server has got it, too."""
    try:
        with Path("/dev/tty").open("rb", buffering=0) as terminal:
            return os.tcgetpgrp(terminal.fileno()) == os.getpgrp()
    except OSError:
        return False
