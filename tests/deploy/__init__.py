"""What deploy/ holds, each file tried with the tool that it is for.

Tools are Debian's (prometheus, docker-compose, kubectl, systemd) or from PyPI. Without one the test is skipped and says
so; with CI=true it fails. `.ci/run` installs them.
"""

import os
import shutil
import tomllib
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[2]
DEPLOY: Final = ROOT / "deploy"
VERSION: Final[str] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


def tool(name: str, package: str) -> str:
    """The path of a command of that Debian package."""
    found = shutil.which(name)
    if found is None:
        missing = f"{name} is not installed: apt-get install {package}"
        if os.environ.get("CI") == "true":
            pytest.fail(missing)
        pytest.skip(missing)
    return found
