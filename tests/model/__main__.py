"""`python -m tests.model [--histories N] [--seed FIRST] [--jobs N] [--races | --stdio | --fleet]`: random histories.

Of each rule that broke it shows the history of the first seed, made small, with all that happened; the exit status is 1
then. It tells what was odd, and how often. One seed is played again with `--seed N --histories 1`, and shown whole
with `--whole`.
"""

import argparse
import os
import sys
from collections.abc import Iterator
from typing import Final

from tests.model.fleet import FleetWorld
from tests.model.over_stdio import StdioWorld
from tests.model.play import RaceWorld, World
from tests.model.search import broken, search, smallest

HISTORIES: Final = 20_000
_SHOWN_LINES: Final = 150


def _report(by_rule: dict[str, list[int]], whole: bool, world: type[World]) -> Iterator[str]:
    for rule, seeds in by_rule.items():
        yield f"\n{rule}: broken by {len(seeds)} histories, seeds {', '.join(map(str, seeds[:10]))}"
        history = world.drawn(seeds[0])
        story = str(broken(history, world) if whole else smallest(history, rule, world)).splitlines()
        cut = len(story) - _SHOWN_LINES
        yield from story if cut <= 0 or whole else [*story[:10], f"... {cut} lines ...", *story[10 + cut :]]


def main() -> int:
    """The command; returns its exit status."""
    if os.environ.get("PYTHONHASHSEED") != "0":  # the order of sets of strings is part of a history
        command = [sys.executable, "-m", "tests.model", *sys.argv[1:]]
        os.execve(sys.executable, command, {**os.environ, "PYTHONHASHSEED": "0"})
    parser = argparse.ArgumentParser(prog="python -m tests.model")
    parser.add_argument("--histories", type=int, default=HISTORIES)
    parser.add_argument("--seed", type=int, default=0, help="the first")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--whole", action="store_true", help="show histories as they were drawn")
    kinds = parser.add_mutually_exclusive_group()
    kinds.add_argument("--races", action="store_true", help="histories in which almost everything overlaps")
    kinds.add_argument("--stdio", action="store_true", help="over stdio, without what only HTTP has")
    kinds.add_argument("--fleet", action="store_true", help="two replicas with a store, which fails")
    options = parser.parse_args()
    world = StdioWorld if options.stdio else FleetWorld if options.fleet else RaceWorld if options.races else World
    by_rule, drawn = search(range(options.seed, options.seed + options.histories), options.jobs, world)
    print(*(f"{count:8,}  {what}: {whose}".rstrip(": ") for (what, whose), count in sorted(drawn.items())), sep="\n")
    print(*_report(by_rule, options.whole, world), sep="\n")
    return 1 if by_rule else 0


if __name__ == "__main__":
    sys.exit(main())
