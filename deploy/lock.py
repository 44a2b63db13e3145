"""Write deploy/constraints.txt, as pip chooses for the ranges in pyproject.toml: `python deploy/lock.py`.

Always: nothing is installed; lines with a marker stay, as this Python does not know what others need. That the
file has what is needed, and no more, is tested (tests/test_install.py).
"""

import json
import subprocess
import sys
from pathlib import Path

FILE = Path(__file__).parent / "constraints.txt"
HEAD = "# Exact versions for the ranges in pyproject.toml. Written by make lock.\n"


def chosen() -> dict[str, str]:
    """Name to version of all packages."""
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed", "--report", "-"]
    done = subprocess.run([*pip, ".[dev,bench]"], cwd=FILE.parent.parent, stdout=subprocess.PIPE, check=True)
    packages = [each["metadata"] for each in json.loads(done.stdout)["install"]]
    return {each["name"]: each["version"] for each in packages if each["name"] != "taskgate"}


def main() -> None:
    old = FILE.read_text().splitlines(keepends=True)
    marked = old[old.index(next(line for line in old if line.startswith("# What some Pythons"))) :]
    by_hand = {line.split("==")[0] for line in marked if not line.startswith("#")}
    found = {name: version for name, version in chosen().items() if name not in by_hand}
    exact = (f"{name}=={found[name]}\n" for name in sorted(found, key=str.lower))
    FILE.write_text("".join([HEAD, *exact, *marked]))


if __name__ == "__main__":
    main()
