"""What is installed for what: `make run` needs the gateway's own dependencies, and no more. Nothing is downloaded."""

import ast
import os
import re
import runpy
import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path
from typing import Any, Final

import pytest
from packaging.requirements import Requirement
from packaging.utils import NormalizedName, canonicalize_name

from tests.tools import missing

ROOT: Final = Path(__file__).parents[1]
PROJECT: Final[dict[str, Any]] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
RUNTIME: Final[list[str]] = PROJECT["dependencies"]
DEV: Final[list[str]] = PROJECT["optional-dependencies"]["dev"]
BENCH: Final[list[str]] = PROJECT["optional-dependencies"]["bench"]
PINS: Final = {
    canonicalize_name(pin.name): pin
    for line in (ROOT / "deploy/constraints.txt").read_text().splitlines()
    if not line.startswith("#")
    for pin in [Requirement(line)]
}


def closure(given: list[str]) -> dict[NormalizedName, list[Requirement]]:
    """Every package that these requirements need on this machine, with all requirements for it."""
    found: dict[NormalizedName, list[Requirement]] = {}
    waiting = [(Requirement(text), "") for text in given]
    seen: set[tuple[str, str]] = set()
    while waiting:
        requirement, extra = waiting.pop()
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": extra}):
            continue
        name = canonicalize_name(requirement.name)
        found.setdefault(name, []).append(requirement)
        for wanted in {"", *requirement.extras} - {known for one, known in seen if one == name}:
            seen.add((name, wanted))
            try:
                waiting += [(Requirement(text), wanted) for text in requires(name) or []]
            except PackageNotFoundError:
                missing(f"{name} is not installed: make .venv/.bench")
    return found


def make(target: str, venv: Path, *variables: str) -> str:
    """What `make` would do for a target in a fresh clone."""
    command = ["make", "--no-print-directory", "--dry-run", "--directory", str(ROOT), target, f"VENV={venv}"]
    command += variables
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("given", [RUNTIME, [*RUNTIME, *DEV]], ids=["runtime", "all"])
def test_every_package_has_an_exact_version_that_fits(given: list[str]) -> None:
    for name, requirements in closure(given).items():
        [exact] = PINS[name].specifier
        assert exact.operator == "=="
        for requirement in requirements:
            assert requirement.specifier.contains(exact.version, prereleases=True), (requirement, exact)


def test_no_package_has_a_version_that_nothing_needs() -> None:
    """As `make lock` leaves none. CI runs `make check-lock`, which asks pip.

    On Debian 12's Python redis needs `async-timeout`, which the lock had not: lines of some Pythons have a marker.
    """
    here = {name for name, pin in PINS.items() if pin.marker is None or pin.marker.evaluate()}
    assert here == closure([*RUNTIME, *DEV, *BENCH]).keys()
    for marked in (False, True):
        names = [pin.name.lower() for pin in PINS.values() if bool(pin.marker) == marked]
        assert names == sorted(names), "in another order than pip freeze has"
    assert PINS[canonicalize_name("async-timeout")].marker
    assert "make check-lock" in (ROOT / ".ci/run").read_text().splitlines()


def test_running_needs_a_small_part_of_what_the_tests_need() -> None:
    assert len(closure(RUNTIME)) < 25
    assert not set(closure(RUNTIME)) & {"pytest", "mypy", "ruff", "hypothesis", "mcp", "fastmcp", "pydantic", "httpx"}


def test_make_run_installs_what_running_needs_and_no_more(tmp_path: Path) -> None:
    done = make("run", tmp_path / "venv")
    assert "--editable ." in done
    assert "[dev]" not in done
    assert "npm" not in done
    assert "taskgate demo" in done


@pytest.mark.parametrize("target", ["install", "test", "check", "fuzz", "bench", "dist", "try-image"])
def test_other_targets_install_what_the_tests_need(target: str, tmp_path: Path) -> None:
    done = make(target, tmp_path / "venv")
    assert done.index("--editable .") < done.index("--editable '.[dev]'")


def test_the_peers_are_installed_only_to_measure_beside_them(tmp_path: Path) -> None:
    listed = [line for line in (ROOT / "tests/bench/peers.txt").read_text().splitlines() if "==" in line]
    said = f"{len(listed)} packages"
    done = make("bench", tmp_path / "venv", f"THIRD={tmp_path / 'peers'}", "ARGS=peers --rounds 1")
    assert "tests/bench/peers.txt" in done
    assert said in done
    assert "tests/bench/peers.txt" not in make("bench", tmp_path / "venv", f"THIRD={tmp_path / 'peers'}")


def test_make_says_what_takes_long_before_it_does_it(tmp_path: Path) -> None:
    lines = make("install", tmp_path / "venv").splitlines()
    steps = [place for place, line in enumerate(lines) if " install " in line and "pip" in line]
    assert len(steps) == 2
    assert all("--quiet" not in lines[place] for place in steps), "pip shows what it downloads"
    assert sum(line.startswith("echo ") for line in lines[: steps[1]]) == 2
    [most] = re.findall("[0-9]+(?= packages)", lines[0])
    assert int(most) - len(closure(RUNTIME)) in (0, 1), "from Python 3.13 on aiohttp needs one less"


@pytest.mark.parametrize("folder", ["", "inspector", "servers"])
def test_what_npm_cannot_install_ends_nothing(tmp_path: Path, folder: str) -> None:
    """With Debian 12's Node 18 `make test` ended before its first test."""
    (tmp_path / "npm").write_text("#!/bin/sh\necho 'Required: another Node' >&2; exit 1\n")
    (tmp_path / "npm").chmod(0o755)
    (place := tmp_path / "node" / folder).mkdir(parents=True)
    (place / "package-lock.json").touch()
    command = ["make", "--directory", str(ROOT), f"NODE={tmp_path}/node", f"{place}/node_modules/.installed"]
    path = f"{tmp_path}:{os.environ['PATH']}"
    done = subprocess.run(command, env={**os.environ, "PATH": path}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "another Node" in done.stderr and f"cannot install the packages of {place}" in done.stdout
    assert not (place / "node_modules").exists()


def test_a_missing_tool_skips_its_tests_which_run_once_it_is_there_and_fail_in_ci(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_bytes((ROOT / "pyproject.toml").read_bytes())
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/test_tools.py").write_text(
        "import pytest\nfrom tests.tools import tool\n\n"
        "@pytest.mark.parametrize('name', ['sh', 'a\\n[b]::\\xe9 c', 'no-such-tool'])\n"
        "def test_it(name): tool(name, 'some-package')\n"
    )
    skipped = tmp_path / "skipped"

    def ran(*arguments: str, **environment: str) -> tuple[int, str]:
        command = [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-q", *arguments]
        given = {key: value for key, value in os.environ.items() if key != "CI" and not key.startswith("PYTEST_")}
        given |= {"PYTHONPATH": str(ROOT), **environment}
        done = subprocess.run(command, cwd=tmp_path, env=given, capture_output=True, text=True)
        return done.returncode, done.stdout

    status, said = ran("-n", "1", PYTEST_ADDOPTS=f"--skipped-into={skipped}")
    assert (status, "1 passed, 2 skipped" in said) == (0, True), said
    assert "no-such-tool is not installed: apt-get install some-package" in said
    assert len(skipped.read_text().splitlines()) == 2
    status, said = ran(f"@{skipped}", CI="true")
    assert (status, "2 failed" in said, "passed" in said) == (1, True, False), said


def test_ci_begins_as_a_newcomer_does_and_installs_tools_for_what_that_skipped() -> None:
    commands = re.findall(r"(?m)^ *((?:env .*)?make .*|.*apt-get install.*)$", (ROOT / ".ci/run").read_text())
    assert commands[0] == "env -u CI make run ONCE=1"
    assert re.fullmatch(
        r'env -u CI PYTEST_ADDOPTS="--skipped-into=\$skipped --hypothesis-seed=0" make test', commands[1]
    )
    assert "apt-get" in commands[2]
    assert commands[3].startswith("make .venv/.bench")
    assert commands[4].endswith('@$skipped"')


def test_no_class_that_is_not_compiled_inherits_from_one_that_is() -> None:
    """Such a class cannot be made: mypyc says so only when it is tried."""
    modules = runpy.run_path(str(ROOT / "deploy/compile.py"))["MODULES"]
    compiled: set[str] = set()
    others: dict[str, set[str]] = {}
    for path in (ROOT / "gateway").rglob("*.py"):
        is_compiled = str(path.relative_to(ROOT / "gateway").with_suffix("")) in modules
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) and is_compiled:
                compiled.add(node.name)
            elif isinstance(node, ast.ClassDef):
                others[node.name] = {base.id for base in node.bases if isinstance(base, ast.Name)}
    assert len(compiled) > 20, "there are classes to compile"
    assert {name: bases & compiled for name, bases in others.items() if bases & compiled} == {}
