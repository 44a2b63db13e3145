"""HAProxy, Envoy and nginx, each with its recipe of deploy/balancing/, in front of replicas of a test.

Only addresses, and how often a balancer looks at a replica, differ from the recipe.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.bench import envoy
from tests.deploy import DEPLOY
from tests.launch import Process, is_taken, started
from tests.tools import missing, tool

RECIPES: Final = DEPLOY / "balancing"
REPLICAS: Final = 3
CLIENTS_PORT: Final = 8080
_PORTS: Final = re.compile(r"(127\.0\.0\.1:|port_value: |port )(\d+)")
_SOONER: Final = (("inter 1s", "inter 100ms"), ("interval: 1s", "interval: 0.1s"))


@dataclass(frozen=True)
class Kind:
    """A balancer: its recipe, the command that runs a file in the foreground, and its words for a 503 of /readyz."""

    recipe: Path
    command: Callable[[Path], list[str]]
    not_ready: str | None


def _haproxy(file: Path) -> list[str]:
    return [tool("haproxy", "haproxy"), "-db", "-f", str(file)]


def _envoy(file: Path) -> list[str]:
    found = envoy.executable()
    if found is None:
        missing("envoy is not installed: make .venv/.bench")
    log = ("--log-level", "warning", "--component-log-level", "hc:debug")
    return [found, "-c", str(file), "--concurrency", "1", "--use-dynamic-base-id", *log]


def _nginx(file: Path) -> list[str]:
    own = f"daemon off; pid {file}.pid; error_log stderr;"
    return [tool("nginx", "nginx-light"), "-e", "stderr", "-p", str(file.parent), "-c", str(file), "-g", own]


KINDS: Final = {
    "haproxy": Kind(RECIPES / "haproxy.cfg", _haproxy, "wrong status, code: 503"),
    "envoy": Kind(RECIPES / "envoy.yaml", _envoy, "hc response_code=503"),
    "nginx": Kind(RECIPES / "nginx.conf", _nginx, None),
}


def ports_in(text: str) -> set[int]:
    return {int(port) for _, port in _PORTS.findall(text)}


def _moved(text: str, ports: dict[int, int]) -> str:
    """A recipe with other ports, and shorter pauses between its checks."""
    for given, sooner in _SOONER:
        text = text.replace(given, sooner)
    return _PORTS.sub(lambda found: f"{found[1]}{ports[int(found[2])]}", text)


@contextmanager
def running(name: str, directory: Path, port: int, replicas: Sequence[tuple[int, int]]) -> Iterator[Process]:
    """A balancer in front of replicas, given as port and admin port of each. It may not listen yet: see `wait`."""
    ports = {CLIENTS_PORT: port}
    for number, (listen, admin) in enumerate(replicas, 1):
        ports |= {CLIENTS_PORT + number: listen, 9090 + number: admin}
    with running_with(name, _moved(KINDS[name].recipe.read_text(), ports), directory, port) as process:
        yield process


@contextmanager
def running_with(name: str, text: str, directory: Path, port: int) -> Iterator[Process]:
    """The same with a configuration that is given."""
    kind = KINDS[name]
    file = directory / kind.recipe.name
    file.write_text(text)
    log, origin = file.with_suffix(".log"), f"http://127.0.0.1:{port}"
    with started(name, kind.command(file), log, origin, lambda: is_taken(port), tree=directory) as process:
        yield process
