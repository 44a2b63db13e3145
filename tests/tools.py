"""What tests need of a machine beside Python and its packages: commands, Node, a terminal, the name `localhost`.

Without it the test is skipped, and says what is missing; with CI=true it fails. `.ci/run` installs Debian's commands.
"""

import json
import os
import pty
import shutil
import socket
import subprocess
from functools import cache
from pathlib import Path
from typing import Final, NoReturn

import pytest

ROOT: Final = Path(__file__).parents[1]
NODE: Final = ROOT / "tests/node"


def missing(what: str) -> NoReturn:
    """End the test: skipped by hand, failed in CI."""
    if os.environ.get("CI") == "true":
        pytest.fail(what)
    pytest.skip(what)


def tool(name: str, package: str) -> str:
    found = shutil.which(name, path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin")
    if found is None:
        missing(f"{name} is not installed: apt-get install {package}")
    return found


def node() -> str:
    npm("", ".installed")
    return tool("node", "nodejs")


def inspector() -> str:
    """The path of the Node that comes with the Inspector, which needs a newer one than the other packages."""
    return npm("inspector", "node-linux-*/bin/node")


def npm(folder: str, pattern: str) -> str:
    """The path of the one file of that name that npm has installed for a folder of tests/node, for this machine."""
    modules = NODE / folder / "node_modules"
    found = [*modules.glob(pattern)] if (modules / ".installed").exists() else []
    if len(found) != 1:
        missing(f"{modules.parent.relative_to(ROOT)} is not installed: make test, with npm and {_wanted_node()}")
    return str(found[0])


@cache
def _wanted_node() -> str:
    path = shutil.which("node")
    here = subprocess.run([path, "--version"], capture_output=True, text=True).stdout.strip() if path else "none"
    return f"Node {json.loads((NODE / 'package.json').read_text())['engines']['node']}; here is {here}"


def second() -> str:
    """The Python of the environment whose packages go with no others: mcp 2.x, FastMCP 4 (tests/real/second.txt)."""
    path = ROOT / ".venv-2/bin/python"
    if not path.exists():
        missing(".venv-2 is not installed: make .venv-2/.installed")
    return str(path)


def localhost() -> str:
    """The name of this machine's loopback address."""
    try:
        socket.getaddrinfo("localhost", None)
    except OSError as error:
        missing(f"localhost: {error}; put `127.0.0.1 localhost` into /etc/hosts")
    return "localhost"


def open_terminal() -> tuple[int, int]:
    """A pseudo-terminal: the end of who types and reads, and that of the programs."""
    try:
        return pty.openpty()
    except OSError as error:
        missing(f"no pseudo-terminal: {error}; mount devpts at /dev/pts")
