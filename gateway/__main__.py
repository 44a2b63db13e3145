"""The command `taskgate`, which is also `python -m gateway`.

Exit status: 0 after SIGTERM, SIGINT or a successful --check; 1 if an address cannot be had; 2 for a configuration
or flags that are wrong, a file that cannot be read included.
"""

import argparse
import asyncio
import sys
from importlib.metadata import version
from pathlib import Path

from gateway import app, config

_USAGE = """\
taskgate --upstream URL [--listen HOST:PORT] [--admin HOST:PORT] [--check]
       taskgate --config FILE [--check]
       taskgate demo [--once]"""
_EXAMPLES = """\
examples:
  taskgate --upstream http://127.0.0.1:3001/mcp
      in front of one server; clients use http://127.0.0.1:8080/mcp, metrics are at http://127.0.0.1:9090/metrics
  taskgate --config /etc/taskgate/config.yaml
      with everything that config.example.yaml shows; SIGHUP reloads it, SIGTERM drains and ends
  taskgate --check --config config.yaml
      say whether a configuration is valid, and start nothing
  taskgate demo
      see what it does, in front of a small server of its own
"""


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="taskgate",
        usage=_USAGE,
        description="A reverse proxy that gives MCP servers of the 2025-11-25 era a filtered tasks/list (SEP-1904).",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help="the configuration, as config.example.yaml shows it"
    )
    parser.add_argument("--upstream", metavar="URL", help="the server to stand in front of; needs no file")
    parser.add_argument("--listen", metavar="HOST:PORT", help="with --upstream: where clients connect (127.0.0.1:8080)")
    parser.add_argument("--admin", metavar="HOST:PORT", help="with --upstream: /metrics and health (127.0.0.1:9090)")
    parser.add_argument(
        "--check", action="store_true", help="check the configuration and exit: 0 if it is valid, 2 if not"
    )
    parser.add_argument("--version", action="version", version=f"taskgate {version('taskgate')}")
    demo = parser.add_subparsers(prog="taskgate", dest="command", title="commands", metavar="").add_parser(
        "demo",
        help="see what it does: a filtered list, what it costs by hand and through taskgate",
        description="Start a small MCP server that cannot filter its tasks, and taskgate in front of it. Ask for a "
        "filtered list, show it, and show what it costs by hand and through taskgate. Then serve until Ctrl-C.",
        epilog="Everything runs on 127.0.0.1. taskgate takes ports 8080 and 9090, or free ones if these are taken. "
        "Exit status: 0 if taskgate's answers are those that filtering by hand finds; else 1.",
    )
    demo.add_argument("--once", action="store_true", help="exit once all is shown")
    return parser


def main() -> None:
    """Run the command with the process's arguments."""
    parser = _arguments()
    given = parser.parse_args()
    if given.command == "demo":
        if given.config or given.upstream or given.listen or given.admin or given.check:
            parser.error("demo has its own configuration: it goes with none of the other flags")
        from gateway.demo import show  # its HTTP client is no part of the gateway

        raise SystemExit(show.run(given.once))
    if (given.config is None) == (given.upstream is None):
        parser.error("one of --config FILE and --upstream URL is needed")
    if given.config is not None and (given.listen or given.admin):
        parser.error("--listen and --admin go with --upstream; a file has its own listen and admin.listen")

    def read() -> config.Config:
        if given.config is not None:
            return config.load(given.config)
        return config.for_upstream(given.upstream, given.listen, given.admin)

    try:
        settings = read()
        if settings.tls is not None:
            app.tls_context(settings.tls)
    except (config.ConfigError, app.StartError) as error:
        print(f"taskgate: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    if given.check:
        print(f"{given.config or 'the flags'}: valid; upstreams: {', '.join(u.name for u in settings.upstreams)}")
        return
    serve = app.run(settings, read if given.config is not None else None)
    try:
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            runner.run(serve)
    except app.StartError as error:
        print(f"taskgate: {error}", file=sys.stderr)
        raise SystemExit(1) from None


def _loop_factory() -> "type[asyncio.AbstractEventLoop] | None":
    try:
        import uvloop
    except ImportError:
        return None
    loop: type[asyncio.AbstractEventLoop] = uvloop.Loop
    return loop


if __name__ == "__main__":
    main()
