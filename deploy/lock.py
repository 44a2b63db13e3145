"""Write deploy/constraints.txt, as pip chooses for the ranges in pyproject.toml: `python deploy/lock.py [--check]`.

In: the file as it is. Out: the file; with `--check` status 1 and the lines that differ, if pip would not choose the
versions in it. Always: nothing is installed; lines with a marker stay, as this Python does not know what others need.
"""

import difflib
import json
import subprocess
import sys
from pathlib import Path

FILE = Path(__file__).parent / "constraints.txt"
HEAD = "# Exact versions for the ranges in pyproject.toml. Written by make lock.\n"


def chosen(by_file: bool) -> dict[str, str]:
    """Name to version of all packages; `by_file`: as far as the file allows."""
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed", "--report", "-"]
    constraint = ["--constraint", str(FILE)] if by_file else []
    ranges = [*pip, *constraint, ".[dev,bench]"]
    done = subprocess.run(ranges, cwd=FILE.parent.parent, stdout=subprocess.PIPE, check=True)
    packages = [each["metadata"] for each in json.loads(done.stdout)["install"]]
    return {each["name"]: each["version"] for each in packages if each["name"] != "taskgate"}


def main() -> int:
    is_check = sys.argv[1:] == ["--check"]
    old = FILE.read_text().splitlines(keepends=True)
    marked = old[old.index(next(line for line in old if line.startswith("# What some Pythons"))) :]
    by_hand = {line.split("==")[0] for line in marked if not line.startswith("#")}
    found = {name: version for name, version in chosen(is_check).items() if name not in by_hand}
    new = [HEAD, *(f"{name}=={found[name]}\n" for name in sorted(found, key=str.lower)), *marked]
    if not is_check:
        FILE.write_text("".join(new))
        return 0
    differ = list(difflib.unified_diff(old, new, FILE.name, "as pip chooses"))
    sys.stdout.writelines(differ)
    return 1 if differ else 0


if __name__ == "__main__":
    sys.exit(main())
