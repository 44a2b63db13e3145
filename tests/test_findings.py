"""The scripts of findings/ keep their form, and what runs them tells a change from a script that could not run."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SCRIPTS = sorted((ROOT / "findings").glob("*.sh"))
HEAD = re.compile(
    r"#!/usr/bin/env bash\n"
    r"# Who: (?s:.*?)Run first: 20\d\d-\d\d-\d\d\.\n"
    r"# What: (?s:.*?)\n"
    r"# Rule: docs/design\.md ((?:\d+\.\d+(?:, | and )?)+): (?s:.*?)\n"
    r"set -euo pipefail\n"
)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_script_says_who_what_and_which_rule_and_the_design_cites_it_beside_that_rule(script: Path) -> None:
    text, facts = script.read_text(), (ROOT / "docs/design.md").read_text()
    facts = facts.partition("\n## 2. ")[2].partition("\n## 3. ")[0]
    found = HEAD.match(text)
    assert found
    cited = facts.partition(f"](../findings/{script.name})")[2]
    rules = re.search(r"\(([\d., ]+)\)", re.sub(r"\]\([^)]*\)", "", cited))
    assert rules and rules[1] == found[1]
    assert all(f"\n{rule}. " in (ROOT / "docs/design.md").read_text() for rule in found[1].split(", "))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_script_pins_what_it_installs_in_a_folder_that_goes(script: Path) -> None:
    text = script.read_text()
    assert re.search(r"^\w+=\$\(mktemp -d\)\ntrap '.*rm -rf \"\$\w+\"' EXIT$", text, re.MULTILINE)
    for install, options in re.findall(r"^\S*(pip|npm) install ((?:[^\n|>&\\]|\\\n)*)", text, re.MULTILINE):
        names = [word for word in options.split() if not word.startswith(("--", "2", "\\"))]
        assert names and all(("==" if install == "pip" else "@") in name[1:] for name in names), names
    assert not re.search(r"https?://(?!127\.0\.0\.1)", text)


def test_a_change_and_a_script_that_could_not_run_are_told_apart(tmp_path: Path) -> None:
    shutil.copy(ROOT / "findings/run.py", tmp_path)
    for name, does in {"holds": "exit 0", "changed": "echo seen; exit 1", "offline": "exit 2"}.items():
        head = f"#!/usr/bin/env bash\n# Who: {name} 1.0.\n# What: a\n#       thing.\n# Rule: docs/design.md 1.1: so.\n"
        (tmp_path / f"{name}.sh").write_text(f"{head}set -euo pipefail\n{does}\n")

    def run(*chosen: str) -> tuple[int, str]:
        ran = subprocess.run([sys.executable, tmp_path / "run.py", *chosen], capture_output=True, text=True)
        return ran.returncode, ran.stdout + ran.stderr

    status, said = run()
    assert status == 2 and said.endswith("\n1 as known, 1 CHANGED, 1 could not run\n")
    assert "changed: CHANGED\n  changed 1.0.\n  It stands under docs/design.md 1.1: so.\n  | seen\n" in said
    assert "holds: " not in said
    assert run("changed")[0] == 1 and run("holds")[0] == 0 and run("none of these")[0] == 2
