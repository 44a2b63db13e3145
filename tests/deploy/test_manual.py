"""The man page and the completions: made from the parsers, and read by the programs that show them."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.deploy import ROOT, output
from tests.tools import tool


@pytest.fixture(scope="module")
def share(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("share")
    subprocess.run(
        [sys.executable, "deploy/manual.py", folder], check=True, cwd=ROOT, env={**os.environ, "PYTHONPATH": "."}
    )
    return folder


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("ta", "tasks"),
        ("--ups", "--upstream"),
        ("--log-level w", "warning"),
        ("tasks --sta", "--status"),
        ("try --cou", "--count"),
        ("stdio --ad", "--admin"),
    ],
)
def test_bash_completes_commands_flags_and_choices(words: str, found: str, share: Path) -> None:
    script = (
        f"source {share}/bash-completion/completions/taskgate; COMP_WORDS=(taskgate {words}); "
        'COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _shtab_taskgate; echo "${COMPREPLY[@]}"'
    )
    ended = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    assert (ended.stdout, ended.stderr) == (f"{found}\n", "")


def test_the_man_page_has_every_command_and_flag(share: Path) -> None:
    said = output(tool("groff", "groff-base"), "-man", "-Tutf8", "-P-cbou", "-ww", f"{share}/man/man1/taskgate.1")
    shown = said.replace("\N{HYPHEN}", "-").replace("\N{MINUS SIGN}", "-")
    assert re.search(r"NAME\n +taskgate - a filtered tasks/list for MCP servers", shown)
    for flag in ("--upstream", "--status A,B", "--limit N", "--create TOOL", "--once", "--admin HOST:PORT"):
        assert flag in shown
