"""What the command lines of `taskgate try` and `taskgate tasks` have in common, and how a command of a client runs."""

import argparse
import asyncio
import io
import logging
import math
import re
import signal
import sys
import traceback
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from pathlib import Path
from typing import Any, Final

from gateway import config
from gateway.cli.mcp_client import NotAnswered, Target
from gateway.cli.task_table import fitted
from gateway.cli.temporary_gateway import started
from gateway.command_flags import Flags
from gateway.errors import shown
from gateway.operate import log_format

INTERRUPTED: Final = 130
CLOSED: Final = 141
SESSION_ID: Final = " For your client's tasks: --session ID, the Mcp-Session-Id of its requests."
_FIELD: Final = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([\t -~\x80-\xff]*)")


def checked(read: Callable[[str], Any], allows: Callable[[Any], bool], what: str) -> Callable[[str], Any]:
    """A reader of a flag's value, whose error says what is allowed."""

    def value(text: str) -> Any:
        with suppress(ValueError):
            if allows(found := read(text)):
                return found
        raise argparse.ArgumentTypeError(f"given {text!r}, allowed is {what}")

    return value


COUNT: Final = checked(int, lambda count: count >= 1, "a whole number of 1 or more")


def parser(name: str, description: str, epilog: str) -> argparse.ArgumentParser:
    flags = Flags(
        prog=f"taskgate {name}",
        usage=f"taskgate {name} [flags] URL\n       taskgate {name} [flags] -- COMMAND [ARG...]",
        description=f"{description}\n\n"
        "  URL                   the server, with its path: http://127.0.0.1:3001/mcp\n"
        "  -- COMMAND [ARG...]   or the command that starts it, if it speaks over stdio",
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    seconds = checked(float, lambda seconds: 0 < seconds < math.inf, "a number above 0")
    flags.add_argument("url", nargs="?", help=argparse.SUPPRESS)
    flags.add_argument("--session", default="", metavar="ID", help="a session that exists: its tasks")
    flags.add_argument("--header", action="append", default=[], metavar="'NAME: VALUE'", help="sent with each request")
    flags.add_argument("--header-file", type=Path, metavar="FILE", help="such lines: a token belongs in a file")
    flags.add_argument("--seconds", type=seconds, default=60.0, metavar="N", help="take no longer (60)")
    return flags


def read(flags: argparse.ArgumentParser, arguments: Sequence[str]) -> argparse.Namespace:
    """The flags: `header` as fields, and `command` as words. Ends the process if one is wrong."""
    at = arguments.index("--") if "--" in arguments else len(arguments)
    given = flags.parse_args(arguments[:at])
    given.command = list(arguments[at + 1 :])
    if (given.url is None) == (not given.command):
        flags.error("one server is needed: its URL, or -- and the command that starts it")
    if given.command and (given.session or given.header or given.header_file):
        flags.error("--session and --header go with a URL: a command has one session, and no headers")
    lines = [("--header", text) for text in given.header]
    try:
        config.for_upstream(given.url or "http://localhost/", "127.0.0.1:0", None)
        if given.header_file is not None:
            file = enumerate(given.header_file.read_text().splitlines(), 1)
            lines += [(f"--header-file: {given.header_file}:{number}", text) for number, text in file if text.strip()]
    except config.ConfigError as error:
        flags.error(str(error).replace("--upstream", "URL"))
    except (OSError, ValueError) as error:
        flags.error(f"--header-file: {given.header_file} cannot be read: {error}")
    given.header = {}
    for where, text in lines:
        if (field := _FIELD.fullmatch(text.strip())) is None:
            # The value may be secret.
            flags.error(f"{where}: expected 'Name: value', no space in the name, such as 'X-Org: research'")
        given.header[field[1]] = field[2]
    return given


def server(given: argparse.Namespace) -> AbstractAsyncContextManager[Target]:
    return nullcontext(Target(given.url, given.header)) if given.url is not None else started(given.command)


def signalled(name: str, work: Coroutine[Any, Any, int]) -> int:
    """The exit status of `work`: 2 if it raises an error that has words, INTERRUPTED if a signal ended it."""

    async def run() -> int:
        task = asyncio.create_task(work)
        for number in (signal.SIGINT, signal.SIGTERM):  # the first one: nothing interrupts tidying up
            asyncio.get_running_loop().add_signal_handler(number, lambda: task.cancelling() or task.cancel())
        return await task

    log_format.set_up(config.Log(level="error", format="text"))
    logging.disable(logging.WARNING)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)
    try:
        return asyncio.run(run())
    except asyncio.CancelledError:
        return INTERRUPTED
    except BrokenPipeError:  # nobody reads on
        return CLOSED
    except (NotAnswered, config.ConfigError, config.StartError, OSError) as error:
        words = str(error)
    except Exception:  # Python's own status, 1, would say that taskgate does not help
        words = f"a fault of taskgate itself: {traceback.format_exc()}"
    with suppress(OSError):
        for line in words.split("\n"):
            print(fitted(f"taskgate {name}: {shown(line)}", sys.stderr), file=sys.stderr)
    return 2
