"""The core does no input or output, never awaits, logs or reads a clock (DESIGN 9): what it may import, and do."""

import ast
from pathlib import Path

import pytest

import gateway.core

CORE = Path(gateway.core.__file__).parent
FILES = sorted(CORE.rglob("*.py"))

# Nothing here reaches a file, a socket, a clock, a thread, a process, an environment or a log. `datetime` has a clock,
# which is looked for below.
ALLOWED = {
    "array",
    "base64",
    "bisect",
    "collections.abc",
    "contextlib",
    "datetime",
    "enum",
    "fractions",
    "functools",
    "hashlib",
    "heapq",
    "itertools",
    "operator",
    "re",
    "typing",
    "zlib",
    "httptools",
    "msgspec",
    "orjson",
}
BUILTINS = {"open", "print", "input", "exec", "eval", "compile", "__import__", "breakpoint"}
CLOCKS = {"now", "utcnow", "today"}


def imported(tree: ast.AST) -> set[str]:
    """The modules that a file imports, wherever in it."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "a relative import"
            found.add(node.module or "")
    return found


def test_the_core_is_found() -> None:
    assert {f.stem for f in FILES} >= {
        "jsonrpc",
        "sse",
        "task",
        "query",
        "cursor",
        "index",
        "observe",
        "capabilities",
        "freshness",
        "headers",
    }


@pytest.mark.parametrize("file", FILES, ids=lambda f: f.stem)
def test_what_the_core_imports(file: Path) -> None:
    modules = imported(ast.parse(file.read_text()))
    assert {m for m in modules if m != "gateway.core" and not m.startswith("gateway.core.")} <= ALLOWED


@pytest.mark.parametrize("file", FILES, ids=lambda f: f.stem)
def test_what_the_core_does_not_do(file: Path) -> None:
    tree = ast.parse(file.read_text())
    assert not {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)} & BUILTINS
    assert not {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)} & CLOCKS
    waits = (ast.AsyncFunctionDef, ast.Await, ast.AsyncFor, ast.AsyncWith)
    assert not [node for node in ast.walk(tree) if isinstance(node, waits)]


@pytest.mark.parametrize(
    "line", ["import asyncio", "import os.path", "def f():\n  import time", "from socket import socket"]
)
def test_these_tests_see_every_import(line: str) -> None:
    assert not imported(ast.parse(line)) <= ALLOWED
