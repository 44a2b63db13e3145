"""`python -m tests.bench [SECTION ...] [--rounds N] [--against COMMIT]`: measure, print.

Every figure stands beside that of a peer measured in the same run, because the machine is shared and noisy: compare
within a run, never between two. The exit status is 1 if something could not be measured; a missed goal is shown.
"""

import argparse
import asyncio
import os
import platform
import signal
import sys
import sysconfig
from collections.abc import Awaitable, Callable
from importlib.metadata import version
from typing import Final

import uvloop

from tests.bench import costs, guard, hostile, index, peers, proc, relay, streams
from tests.bench.processes import BenchFailed
from tests.bench.report import Options, Table, progress

SECTIONS: Final[dict[str, Callable[[Options], Awaitable[list[Table]]]]] = {
    "relay": relay.run,
    "index": index.run,
    "streams": streams.run,
    "hostile": hostile.run,
    "guard": guard.run,
    "known": guard.run_known,
    "costs": costs.run,
    "peers": peers.run,
}
NAMED_ONLY: Final = frozenset({"guard", "known", "costs", "peers"})
ROUNDS: Final = 5
ROUNDS_MAX: Final = 101

_SECTIONS_HELP: Final = """\
sections (all but guard, known, costs and peers, if none is named):
  relay    what relayed messages cost: the traffic of real clients by kind, mixed, and one ping; Envoy, taskgate
  index    a filtered page out of 50,000 tasks: the index, and through the gateway; memory; a session's first list
  streams  memory per open event stream, and of 100 MB up and down
  hostile  the worst streams beside plain bodies, and 500 connections that hold all they may (3 minutes)
  guard    CPU of each kind of traffic in this tree against another commit; 10 % more fails
  known    CPU of each kind of traffic beside 10,000 sessions, 100,000 ids, 5,000 streams, 2,000 heads; 10 % more fails
  costs    what each kind of server is asked a minute, in this tree and another commit's; 5 % more fails (5 minutes)
  peers    beside what else you could use: nginx, HAProxy, Envoy, FastMCP, mcp-proxy, ContextForge (3 minutes)

examples:
  make bench
  make bench ARGS="relay index --rounds 9"
  make bench ARGS="guard --against main"
"""


def _options(given: list[str]) -> Options:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench",
        description="Speed and memory of taskgate beside its peers, measured in the same run on the same machine.",
        epilog=_SECTIONS_HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=" ".join(SECTIONS))
    parser.add_argument("--rounds", type=int, default=ROUNDS, metavar="N", help=f"of what is interleaved ({ROUNDS})")
    parser.add_argument("--against", default="HEAD", metavar="COMMIT", help="what guard and costs compare with (HEAD)")
    arguments = parser.parse_args(given)
    if unknown := [name for name in arguments.sections if name not in SECTIONS]:
        parser.error(f"no section {unknown[0]!r}; there are {', '.join(SECTIONS)}")
    if not 1 <= arguments.rounds <= ROUNDS_MAX:
        parser.error(f"--rounds: from 1 to {ROUNDS_MAX}")
    sections = tuple(dict.fromkeys(arguments.sections)) or tuple(s for s in SECTIONS if s not in NAMED_ONLY)
    return Options(sections, arguments.rounds, arguments.against)


def _machine() -> str:
    packages = [f"{name} {version(name)}" for name in ("taskgate", "aiohttp", "httptools", "uvloop", "msgspec")]
    system = f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}"
    optimized = "--enable-optimizations" in f"{sysconfig.get_config_var('CONFIG_ARGS')}" or sys.base_prefix == "/usr"
    build = (
        f"python {platform.python_version()} of {sys.base_prefix}{'' if optimized else ', not optimized as Envoy is'}"
    )
    return ", ".join([system, build, *packages])


async def _measure(options: Options) -> None:
    """Run the sections, printing each section's tables when it is done. SIGTERM ends it as Ctrl-C does."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    for name in options.sections:
        tables = await SECTIONS[name](options)
        progress(f"{name}: done")
        for table in tables:
            print("\n" + "\n".join(table.lines()), flush=True)


def main() -> int:
    """Run the bench with the process's arguments; the exit status."""
    options = _options(sys.argv[1:])
    if not proc.HAS_PROC:
        print("bench: memory and CPU time are read from /proc, which this system does not have", file=sys.stderr)
        return 1
    print(_machine())
    print("Ratios hold within this run; the machine may be busy with other things at any moment.")
    proc.pin(0, proc.cores().others)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_measure(options))
    except BenchFailed as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    except (KeyboardInterrupt, asyncio.CancelledError):
        print("bench: stopped", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
