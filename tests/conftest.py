"""What makes all tests cheaper, and changes none.

A tenth of the time went into the garbage collector, which looked again and again at what pytest has collected and the
packages that tests import. None of it ever goes, so it is set aside.

asyncio's debug mode remembers all frames in which each task, future and timer was made, and looks for each in the file
system whether the source has changed. Two frames name the line as well, and no source changes meanwhile.

A shell starts what runs in its background with SIGINT ignored, and nohup with SIGHUP. What the tests start would
inherit that. A signal that has a handler here has its default action there.

`--skipped-into=FILE` leaves the ids of skipped tests, one a line, so that `@FILE` runs them once their tools are there.
`--part=2/3` runs the second of every three tests: of each table some rows, and others in each part.
"""

import asyncio.constants
import gc
import linecache
import os
import signal
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from tests.launch import Gateways

STACK_DEPTH: Final = 2


settings.register_profile(
    "tests",
    max_examples=int(os.environ.get("RULES_EXAMPLES", "50")),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("tests")


@pytest.fixture(scope="session")
def gateways(tmp_path_factory: pytest.TempPathFactory) -> "Gateways":
    """Forks of this process: two thirds of a start are imports, which are made where they are needed."""
    from tests.forked import fork_of
    from tests.launch import Gateways

    return Gateways(tmp_path_factory.mktemp("gateways"), fork_of)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--skipped-into", type=Path, metavar="FILE", help="write the ids of skipped tests to this file")
    parser.addoption("--part", default="1/1", metavar="K/N", help="run each Nth test, from the Kth on")


def pytest_configure(config: pytest.Config) -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN or hasattr(config, "workerinput"):
        signal.signal(signal.SIGHUP, lambda *_: None)
    patch = pytest.MonkeyPatch()
    patch.setattr(asyncio.constants, "DEBUG_STACK_DEPTH", STACK_DEPTH)  # of timers
    patch.setattr(traceback.extract_stack, "__defaults__", (None, STACK_DEPTH))  # of futures and tasks, which are C
    patch.setattr(linecache, "checkcache", lambda filename=None: None)
    config.add_cleanup(patch.undo)


def pytest_collection_modifyitems(items: list[pytest.Item], config: pytest.Config) -> None:
    part, parts = map(int, config.getoption("part").split("/"))
    items[:] = items[part - 1 :: parts]


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    if file := config.getoption("skipped_into"):
        ids = dict.fromkeys(report.nodeid for report in terminalreporter.stats.get("skipped", []))
        file.write_text("".join(f"{each}\n" for each in ids))
