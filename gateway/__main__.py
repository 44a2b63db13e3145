"""The command `taskgate`, also `python -m gateway`. It imports what a command needs: hosts wait for its start.

A gateway in its start keeps what a signal wants until it can do it: these handlers come before all that takes time.

Exit status: 0 after SIGTERM or SIGINT, and for a valid configuration after --check; 1 if the gateway cannot listen on
an address; 2 for a wrong configuration or wrong flags, and for a file that cannot be read; over stdio the server's own.
"""

import os
import signal
import sys
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

if TYPE_CHECKING:
    import argparse

    from gateway import config
    from gateway.stdio.child_process import NotStarted

_USAGE = """\
taskgate --upstream URL [--listen HOST:PORT] [--admin HOST:PORT]
                [--log-level LEVEL] [--check]
       taskgate --config FILE [--log-level LEVEL] [--check [--against FILE]]
       taskgate stdio [--config FILE] [--admin HOST:PORT] -- COMMAND [ARG...]
       taskgate try [flags] URL, or taskgate try [flags] -- COMMAND [ARG...]
       taskgate tasks [flags] URL, or taskgate tasks [flags] -- COMMAND [ARG...]
       taskgate demo [--once]"""
_EXAMPLES = """\
examples:
  taskgate --upstream http://127.0.0.1:3001/mcp
      in front of one server; clients use http://127.0.0.1:8080/mcp,
      metrics are at http://127.0.0.1:9090/metrics
  taskgate --config /etc/taskgate/config.yaml
      with all that config.example.yaml shows; SIGHUP reloads it, SIGTERM ends
  taskgate --check --config config.yaml
      say whether a configuration is valid, and where each server will be found
  taskgate stdio -- npx -y some-mcp-server
      in front of a server that speaks over standard input and output
  taskgate try http://127.0.0.1:3001/mcp
      say whether it helps at this server; nothing is changed there
  taskgate tasks --status working --created-after 3d http://127.0.0.1:3001/mcp
  taskgate demo
"""

_COMMANDS: Final = ("stdio", "try", "tasks", "demo")
_SIGNALS: Final = (signal.SIGHUP, signal.SIGTERM, signal.SIGINT)
_VARIABLES: Final = {name: f"TASKGATE_{name.upper()}" for name in ("config", "upstream", "listen", "admin")}
_hangups: Final[list[int]] = []  # signals that came before the gateway could reload


def flags() -> "argparse.ArgumentParser":
    import argparse
    from importlib.metadata import version  # stdio has no time for it

    from gateway import config
    from gateway.command_flags import Flags

    parser = Flags(
        prog="taskgate",
        usage=_USAGE,
        description="A reverse proxy for MCP servers that stay on revision 2025-11-25:\na filtered tasks/list.",
        epilog=f"{_EXAMPLES}\n{', '.join(_VARIABLES.values())}\nstand for their flags.\n",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--config", type=Path, metavar="FILE", help="the configuration, as config.example.yaml shows it; - is stdin")
    add("--upstream", metavar="URL", help="the server to stand in front of; needs no file")
    add("--listen", metavar="HOST:PORT", help="with --upstream: where clients connect (127.0.0.1:8080)")
    add("--admin", metavar="HOST:PORT", help="with --upstream: metrics, health, page (127.0.0.1:9090)")
    add("--log-level", choices=config.LEVELS, help="overrides log.level of the configuration")
    add("--against", type=Path, metavar="FILE", help="with --check: the configuration of the gateway that runs")
    add("--check", action="store_true", help="check the configuration and exit: 0 if it is valid, 2 if not")
    add("--version", action="version", version=f"taskgate {version('taskgate')}")
    commands = parser.add_subparsers(prog="taskgate", dest="command", title="commands", metavar="")
    commands.add_parser("stdio", help="start a server that speaks over standard input and output, in front of it")
    commands.add_parser("try", help="say whether it helps at a server, and what a list of tasks costs there")
    commands.add_parser("tasks", help="list the tasks of a server that meet criteria")
    demo = commands.add_parser(
        "demo",
        help="see what it does: a filtered list, what it costs by hand and through taskgate",
        description="Start a small MCP server that cannot filter its tasks, and run `taskgate try` there. Then stay in "
        "front of it until Ctrl-C.",
        epilog="Everything runs on 127.0.0.1. taskgate takes ports 8080 and 9090, or free ones if these are taken. "
        "Exit status: that of `taskgate try`.",
    )
    demo.add_argument("--once", action="store_true", help="exit once all is shown")
    return parser


def main() -> None:
    """Run the command with the process's arguments. Whoever reads its output may stop early."""
    if sys.argv[1:2] not in ([name] for name in _COMMANDS) and not any(a.startswith("--ch") for a in sys.argv):
        for each in _SIGNALS:  # a SIGHUP waits until the gateway serves; the others end it at once: nothing has begun
            signal.signal(each, lambda number, _: _hangups.append(number) if number == signal.SIGHUP else os._exit(0))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)  # an image blocks them until here (deploy/Dockerfile)
    # Closed standard streams lead nowhere: what is opened next would take their places, and what they get.
    for number, (name, mode) in enumerate([("stdin", "r"), ("stdout", "w"), ("stderr", "w")]):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # it takes the lowest number that is free
            setattr(sys, name, os.fdopen(number, mode, closefd=False))
    try:
        with suppress(BrokenPipeError):
            _main()
    finally:
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except OSError:  # else Python says so when it ends, with a status of its own
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _main() -> None:
    if sys.argv[1:2] == ["stdio"]:
        _stdio(sys.argv[2:])
    if sys.argv[1:2] in (["try"], ["tasks"]):
        from gateway.cli import tasks_command, try_command  # their HTTP client is no part of the gateway

        raise SystemExit((try_command if sys.argv[1] == "try" else tasks_command).run(sys.argv[2:]))
    parser = flags()
    given = parser.parse_args(sys.argv[1:])
    if given.command == "demo":
        if any(value for name, value in vars(given).items() if name not in ("command", "once")):
            parser.error("demo has its own configuration: it goes with none of the other flags")
        from gateway.cli.command_line import signalled  # its HTTP client is no part of the gateway
        from gateway.demo.demo_run import demo

        raise SystemExit(signalled("demo", demo(given.once)))
    _fill_in(parser, given)
    from gateway.config import ConfigError, StartError

    try:
        (_check if given.check else _run)(given)
    except (ConfigError, StartError) as error:
        _fail(error)


def _fill_in(parser: "argparse.ArgumentParser", given: "argparse.Namespace") -> None:
    """Add what the environment says to the flags, which override it. Ends the process unless one source is named."""
    named = {name: f"--{name}" for name in _VARIABLES}  # how each was given
    for name, variable in _VARIABLES.items():
        if getattr(given, name) is None and (value := os.environ.get(variable)):
            setattr(given, name, value)
            named[name] = variable
    if given.config is None and given.upstream is None:
        parser.error("one of --config FILE and --upstream URL is needed; --help shows examples")
    if given.config is not None and given.upstream is not None:
        both = f"{named['config']} and {named['upstream']}"
        parser.error(f"{both} are both given: a file names its own upstreams, so leave one of the two out")
    if given.config is not None and (given.listen or given.admin):
        which = named["listen" if given.listen else "admin"]
        parser.error(f"{which} goes with --upstream; a file has its own listen and admin.listen")
    if given.against is not None and (given.config is None or not given.check):
        parser.error("--against goes with --check and --config")
    given.config = given.config and Path(given.config)


def _check(given: "argparse.Namespace") -> None:
    """Build what the command would serve with, drop it, and say where it leads. Raises ConfigError."""
    import asyncio

    from gateway import app, config
    from gateway.command_flags import say
    from gateway.downstream.host_origin_check import exposed
    from gateway.errors import printable
    from gateway.relay import routes
    from gateway.transport import tls_certificates

    # A copy kept elsewhere: its relative names start from the original's folder.
    in_force = given.against and config.load(given.against, folder=given.config.parent)
    settings = _read(given, in_force)
    tls_certificates.check_valid(settings)  # the gateway starts with them all the same
    asyncio.run(app.check(settings))
    lines = [f"{printable(str(given.config or 'the flags'))}: valid"]
    for upstream in settings.upstreams:
        at = routes.address(upstream, settings.listen, settings.tls is not None)
        lines.append(f"{at} leads to {upstream.url} ({upstream.name})")
    if behind := ", ".join(upstream.name for upstream in settings.upstreams if upstream.match.prefix):
        lines.append(f"HTTP+SSE, the transport of 2024-11-05, does not work behind a prefix: {behind}")
    lines += exposed(settings)
    if settings.guards.own_tasks and settings.store is None:
        lines.append("guards.own_tasks without a store: after a restart all tasks are nobody's")
    say("\n  ".join(lines) + "\n")


def _read(given: "argparse.Namespace", in_force: "config.Config | None" = None) -> "config.Config":
    import msgspec

    from gateway.config import ConfigError, for_upstream, load

    if in_force is not None and not given.check and given.config.is_fifo():  # it would be waited for
        raise ConfigError(f"{given.config}: a pipe cannot be read again")
    settings = load(given.config, in_force) if given.config else for_upstream(given.upstream, given.listen, given.admin)
    log = msgspec.structs.replace(settings.log, level=given.log_level or settings.log.level)
    return msgspec.structs.replace(settings, log=log)


def _run(given: "argparse.Namespace") -> None:
    """Serve. Raises ConfigError, or StartError if it cannot listen."""
    import asyncio

    settings = _read(given)
    import uvloop

    from gateway import app  # what serves: faults of the file are told sooner without it

    # Names are looked up in half of libuv's threads. It has four: a slow name, perhaps the store's, held up all others.
    os.environ.setdefault("UV_THREADPOOL_SIZE", "32")
    # uvloop's own clock ticks once a millisecond: two answers in one would be of the same age (DESIGN 6.9).
    loop = type("FineLoop", (uvloop.Loop,), {"time": staticmethod(time.monotonic)})
    with asyncio.Runner(loop_factory=loop) as runner:
        read = partial(_read, given) if str(given.config or "-") != "-" else None
        try:
            runner.run(app.run(settings, read, _hangups))
        finally:  # nothing ends it otherwise while it ends
            signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)


def stdio_flags() -> "argparse.ArgumentParser":
    from gateway.command_flags import Flags

    parser = Flags(
        prog="taskgate stdio",
        usage="taskgate stdio [--config FILE] [--admin HOST:PORT] -- COMMAND [ARG...]",
        description="Start COMMAND, an MCP server that speaks over standard input and output, and stand in front of "
        "it: every line passes either way, and filtered lists of tasks are answered.",
        epilog="Exit status: the server's; a signal that ends the server ends taskgate too. 127 if there is no such "
        "command, 126 if it cannot be started, 2 for wrong flags or a wrong configuration, 1 if --admin cannot listen.",
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help="a configuration of log, index, limits and traces")
    parser.add_argument("--admin", metavar="HOST:PORT", help="where /metrics and health are; without it, nowhere")
    return parser


def _stdio(arguments: list[str]) -> NoReturn:
    """Start a server, stand in front of it, and end as it does."""
    parser = stdio_flags()
    command_line, command = _split(arguments)
    given = parser.parse_args(command_line)
    if not command:
        parser.error("the command that starts the server is needed, behind --")
    from gateway.stdio import child_process

    settings = admin = None
    if given.config or given.admin:
        from gateway import config

        try:
            admin = config.for_upstream("http://localhost/", "127.0.0.1:0", given.admin).admin if given.admin else None
            settings = config.load_stdio(given.config) if given.config else None
        except config.ConfigError as error:
            _fail(error)
    try:
        server = child_process.Child(command)
    except child_process.NotStarted as error:
        _fail(error)
    from gateway import config  # while the server starts
    from gateway.stdio import stdio_proxy as app  # while the server starts

    try:
        status = app.run(server, settings or config.StdioConfig(), admin.listen if admin else None)
    except (config.ConfigError, config.StartError) as error:
        server.terminate()
        _fail(error)
    child_process.end_as(status)


def _split(arguments: list[str]) -> tuple[list[str], list[str]]:
    """The flags, and the command: behind the first `--`, which some launchers eat, or from the first other word."""
    at = 0
    while at < len(arguments) and arguments[at].startswith("-") and arguments[at] != "--":
        at += 2 if arguments[at] in ("--config", "--admin") else 1
    return arguments[:at], arguments[at + (arguments[at : at + 1] == ["--"]) :]


def _fail(error: "config.ConfigError | config.StartError | NotStarted") -> NoReturn:
    with suppress(OSError):  # nobody reads it
        print(f"taskgate: {error}", file=sys.stderr)
    raise SystemExit(error.status) from None


if __name__ == "__main__":
    main()
