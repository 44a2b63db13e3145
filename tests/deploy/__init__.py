"""What deploy/ holds, each file tried with the tool that it is for.

Tools are Debian's (prometheus, docker-compose, kubectl, systemd, haproxy, nginx) or from PyPI, Envoy among them.
Without one the test is skipped and says so; with CI=true it fails. `.ci/run` installs them.
"""

import os
import shutil
import tomllib
from pathlib import Path
from typing import Final, NoReturn

import pytest

ROOT: Final = Path(__file__).parents[2]
DEPLOY: Final = ROOT / "deploy"
VERSION: Final[str] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


def tool(name: str, package: str) -> str:
    """The path of a command of that Debian package."""
    found = shutil.which(name, path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin")
    if found is None:
        missing(f"{name} is not installed: apt-get install {package}")
    return found


def missing(what: str) -> NoReturn:
    """End the test: skipped by hand, failed in CI."""
    if os.environ.get("CI") == "true":
        pytest.fail(what)
    pytest.skip(what)
