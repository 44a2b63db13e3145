"""What deploy/ holds, each file tried with the tool that it is for (tests/tools.py finds it)."""

import subprocess
import tomllib
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
DEPLOY: Final = ROOT / "deploy"
VERSION: Final[str] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


def output(*command: str | Path) -> str:
    """What a command says that must succeed."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
