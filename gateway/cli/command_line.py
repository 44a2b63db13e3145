"""The command lines of `taskgate try` and `taskgate tasks`, and how a command ends: its sessions are deleted."""

import argparse
import asyncio
import json
import math
import re
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from gateway import config
from gateway.arguments import Flags
from gateway.cli import tasks_command, verdict
from gateway.cli.exit_status import INTERRUPTED, signalled
from gateway.cli.mcp_client import NotAnswered, Target, value_of
from gateway.cli.stdio_bridge import started
from gateway.cli.table import columns_of, fitted, table
from gateway.cli.try_command import Probe
from gateway.errors import printable
from gateway.query.criteria import CRITERIA, INSTANT, Criterion, NotAllowed
from gateway.refresh.answer import FILTER

SHOWN_MAX: Final = 10  # tasks that `try --create` shows
_SERVER: Final = """\
  URL                   the server, with its path: http://127.0.0.1:3001/mcp
  -- COMMAND [ARG...]   or the command that starts it, if it speaks over stdio"""
_FIELD: Final = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([\t -~\x80-\xff]*)")
_AGO: Final = re.compile(r"([0-9]{1,6})([smhdw])")
_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_BY_HEADER: Final = (
    f"A client that can only set a header sets this one: {FILTER}: status={','.join(verdict.UNFINISHED)}"
)


def _parser(name: str, description: str, epilog: str) -> argparse.ArgumentParser:
    parser = Flags(
        prog=f"taskgate {name}",
        usage=f"taskgate {name} [flags] URL\n       taskgate {name} [flags] -- COMMAND [ARG...]",
        description=f"{description}\n\n{_SERVER}",
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("url", nargs="?", help=argparse.SUPPRESS)
    parser.add_argument("--session", default="", metavar="ID", help="a session that exists: its tasks")
    parser.add_argument("--header", action="append", default=[], metavar="'NAME: VALUE'", help="sent with each request")
    parser.add_argument("--header-file", type=Path, metavar="FILE", help="such lines: a token belongs in a file")
    parser.add_argument("--ca", type=Path, metavar="FILE", help="the authority of the server's certificate")
    parser.add_argument("--seconds", type=_SECONDS, default=60.0, metavar="N", help="take no longer (60)")
    return parser


def _fields(parser: argparse.ArgumentParser, given: argparse.Namespace) -> dict[str, str]:
    lines = list(given.header)
    if given.header_file is not None:
        try:
            lines += filter(None, map(str.strip, given.header_file.read_text().splitlines()))
        except (OSError, ValueError) as error:
            parser.error(f"--header-file: {given.header_file} cannot be read: {error}")
    found = [_FIELD.fullmatch(line) for line in lines]
    if None in found:
        parser.error("--header: expected 'Name: value', such as 'X-Org: research'")  # the value may be secret
    return {each[1]: each[2].strip() for each in found if each is not None}


def _checked(read: Callable[[str], Any], allows: Callable[[Any], bool], what: str) -> Callable[[str], Any]:
    """A reader of a flag's value, whose error says what is allowed."""

    def value(text: str) -> Any:
        with suppress(ValueError):
            if allows(found := read(text)):
                return found
        raise argparse.ArgumentTypeError(f"given {text!r}, allowed is {what}")

    return value


_OBJECT: Final = _checked(lambda text: value_of(text.encode()), lambda _: True, "a JSON object")
_COUNT: Final = _checked(int, lambda count: count >= 1, "a whole number of 1 or more")
_SECONDS: Final = _checked(float, lambda seconds: 0 < seconds < math.inf, "a number above 0")


@asynccontextmanager
async def _server(given: argparse.Namespace, command: list[str]) -> AsyncIterator[Target]:
    if given.url is not None:
        yield Target(given.url, given.header, given.ca)
    else:
        async with started(command) as target:
            yield target


def _read(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    at = arguments.index("--") if "--" in arguments else len(arguments)
    given, command = parser.parse_args(arguments[:at]), list(arguments[at + 1 :])
    if (given.url is None) == (not command):
        parser.error("one server is needed: its URL, or -- and the command that starts it")
    if command and (given.session or given.header or given.header_file or given.ca):
        parser.error("--session, --header and --ca go with a URL: a command has one session, and no headers")
    try:
        config.for_upstream(given.url or "http://localhost/", "127.0.0.1:0", None)
    except config.ConfigError as error:
        parser.error(str(error).replace("--upstream", "URL"))
    given.header = _fields(parser, given)
    return given, command


def run_try(arguments: Sequence[str]) -> int:
    parser = _parser(
        "try",
        "Say whether taskgate helps at a server: what its list of tasks is like, what it\n"
        "costs by hand, and with taskgate in front, which runs in this process.\n"
        "Nothing is changed there but by --create.",
        "Exit status: 0 if it helps, 1 if not, 2 if that cannot be told, 130 if\ninterrupted.",
    )
    parser.add_argument("--create", metavar="TOOL", help="make one task by this tool, to see what a change costs")
    parser.add_argument("--arguments", type=_OBJECT, default={}, metavar="JSON", help="the tool's arguments")
    parser.add_argument("--pages", type=_COUNT, default=1_000, metavar="N", help="read no more pages by hand (1000)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    given, command = _read(parser, arguments)
    return signalled("try", _trial(given, command))


async def _trial(given: argparse.Namespace, command: list[str]) -> int:
    """Try a server; print the verdict, then the facts. Returns the exit status. Raises NotAnswered."""
    columns = None if given.json else columns_of(sys.stderr)

    def progress(line: str) -> None:
        if columns is not None:
            print(f"\r\033[K{line[: columns - 1]}", end="\r", file=sys.stderr, flush=True)

    async with _server(given, command) as target:
        probe = Probe(target, given.pages, progress)
        stopped, status = "", None
        try:
            await probe.run(given.seconds, given.session, given.create, given.arguments)
        except TimeoutError:
            stopped = f"stopped after {given.seconds:g} s"
        except asyncio.CancelledError:
            stopped, status = "interrupted", INTERRUPTED
        except NotAnswered:
            progress("")
            print("".join(f"{line}\n" for line in probe.lines if not given.json), end="")
            raise
        progress("")
        helps, words = verdict.verdict(probe.learned)
        if stopped:
            probe.learned["stopped"], words = stopped, f"{stopped[0].upper()}{stopped[1:]}. {words}"
        if given.json:
            print(json.dumps(probe.learned | {"helps": helps, "verdict": words}))
        else:
            listed = ["", *table(probe.unfinished[:SHOWN_MAX], columns_of(sys.stdout))] if given.create else []
            ended = [] if probe.unfinished else verdict.ended(probe.learned)
            stay = f"taskgate --upstream {given.url}" if given.url else f"taskgate stdio -- {target.command}"
            hints = [*[_BY_HEADER] * bool(given.url), f"To stay in front of it: {stay}"] if helps else []
            said = fitted(printable(words), sys.stdout, bool(helps))
            hints, ended = ([fitted(printable(each), sys.stdout) for each in some] for some in (hints, ended))
            print("\n".join([said, *hints, "", *probe.lines, *listed, *ended]))
        return {True: 0, False: 1, None: 2}[helps] if status is None else status


def run_tasks(arguments: Sequence[str]) -> int:
    parser = _parser(
        "tasks",
        "List the tasks of a server that meet all criteria. If there is no gateway, one\nruns in this process.",
        "INSTANT: 2026-11-20T00:00:00Z, or how long ago: 90s, 30m, 2h, 3d, 1w.\n"
        "Exit status: 0 if the tasks are listed, 2 if not, 130 if interrupted.",
    )
    group = parser.add_argument_group("criteria")
    for criterion in CRITERIA.values():
        group.add_argument(_flag(criterion.name), dest=f"_{criterion.name}", metavar=_metavar(criterion))
    parser.add_argument("--all", action="store_true", help="follow cursors to the last page")
    parser.add_argument("--watch", action="store_true", help="show the list again every two seconds, with what changed")
    parser.add_argument("--json", action="store_true", help="print one task a line, as the server has it")
    given, command = _read(parser, arguments)
    criteria = dict[str, Any]()
    for criterion in CRITERIA.values():
        if (text := getattr(given, f"_{criterion.name}")) is not None:
            criteria[criterion.name] = _value(parser, criterion, text)

    async def shows() -> int:
        async with _server(given, command) as target:
            await tasks_command.show(target, criteria, given)
            return 0

    return signalled("tasks", shows())


def _flag(name: str) -> str:
    """`createdAfter` as `--created-after`."""
    return "--" + re.sub("[A-Z]", lambda found: f"-{found[0].lower()}", name)


def _metavar(criterion: Criterion) -> str:
    kind = criterion.kind
    return "|".join(kind.choices) or ("A,B" if kind.is_list else "INSTANT" if kind is INSTANT else "VALUE")


def _value(parser: argparse.ArgumentParser, criterion: Criterion, text: str) -> Any:
    value: Any = text.split(",") if criterion.kind.is_list else text
    if criterion.kind is INSTANT and (ago := _AGO.fullmatch(text)):
        then = datetime.fromtimestamp(time.time(), UTC) - timedelta(**{_UNITS[ago[2]]: int(ago[1])})
        value = then.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    try:
        criterion.kind.read(json.dumps(value).encode())
    except NotAllowed as refused:
        also = "; or how long ago, such as 3d or 2h" if criterion.kind is INSTANT else ""
        parser.error(f"{_flag(criterion.name)}: given {text!r}, allowed is {refused.allowed}{also}")
    return value
