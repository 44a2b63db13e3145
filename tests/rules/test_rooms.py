"""The rooms of the code (DESIGN 9): what each may import, what decides and does nothing else, and limits of size."""

import ast
import re
from collections import defaultdict
from functools import cache
from pathlib import Path
from typing import Final

import pytest

import gateway

ROOT: Final = Path(gateway.__file__).parent
FILES: Final = sorted(ROOT.rglob("*.py"))

# The rooms, and the other rooms that each may know. Files that stand directly in `gateway/` may know all.
_LEAVES: Final = {"mcp", "config", "errors", "caller_identity"}
KNOWS: Final = {
    "mcp": set[str](),
    "config": set[str](),
    "errors": {"mcp"},
    "caller_identity": set[str](),
    "http": {"mcp", "errors"},
    "transport": _LEAVES | {"http"},
    "downstream": _LEAVES | {"http", "transport"},
    "upstream": _LEAVES | {"http", "transport"},
    "relay": _LEAVES | {"http", "transport", "downstream", "upstream"},
    "query": {"mcp", "errors"},
    "owners": _LEAVES,
    "tasks": _LEAVES | {"query", "owners"},
    "refresh": _LEAVES | {"query", "owners", "tasks"},
    "store": _LEAVES | {"owners", "tasks"},
    "operate": _LEAVES | {"http", "transport", "downstream", "upstream", "relay", "tasks"},
    "stdio": _LEAVES | {"transport", "query", "tasks", "refresh", "operate"},
}  # fmt: skip
ROOM_FILES_MAX: Final = 12

# What decides: it never awaits, logs or reads a clock.
DECIDES: Final = {
    "mcp": "capabilities client_message ids_in_messages jsonrpc sse task task_observations",
    "http": "address_rewriting cors header_fields message_reader parsed_head_cache request_parser response_parser",
    "query": "criteria cursor",
    "owners": "eviction",
    "tasks": "exchange_observer index lifecycle_counts reconciliation task_entry",
    "refresh": "listing_order planning",
    "upstream": "caller_identity_drift",
    "stdio": "line_splitter",
}
DECIDING: Final = [ROOT / room / f"{name}.py" for room, names in DECIDES.items() for name in names.split()]

# Nothing here reaches a file, a socket, a clock, a thread, a process, an environment or a log. `datetime` has a clock,
# which is looked for below.
ALLOWED: Final = {
    "base64", "binascii", "bisect", "collections", "collections.abc", "contextlib", "datetime",
    "difflib", "enum", "functools", "hashlib", "heapq", "itertools", "json", "math", "operator", "re", "typing",
    "urllib.parse", "httptools", "msgspec", "orjson",
}  # fmt: skip
BUILTINS: Final = {"open", "print", "input", "exec", "eval", "compile", "__import__", "breakpoint"}
CLOCKS: Final = {"now", "utcnow", "today"}


def imported(tree: ast.AST) -> set[str]:
    """The modules that a file imports, wherever in it; of `gateway` and its rooms, the files."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "a relative import"
            module = node.module or ""
            is_room = module.startswith("gateway") and (ROOT.parent / module.replace(".", "/")).is_dir()
            found.update(f"{module}.{alias.name}" for alias in node.names) if is_room else found.add(module)
    return found


def room_of(module: str) -> str:
    return module.split(".")[1]


def module_of(file: Path) -> str:
    return ".".join(file.relative_to(ROOT.parent).with_suffix("").parts).removesuffix(".__init__")


@cache
def parsed(file: Path) -> ast.Module:
    return ast.parse(file.read_text())


@cache
def ours(file: Path) -> set[str]:
    return {m for m in imported(parsed(file)) if m.startswith("gateway.")}


def test_a_room_knows_only_the_rooms_that_it_may_know() -> None:
    known = {module_of(file): {room_of(m) for m in ours(file)} for file in FILES}
    rooms = {m: room_of(m) for m in known if "." in m and room_of(m) in KNOWS}
    assert not {m: more for m, room in rooms.items() if (more := known[m] - KNOWS[room] - {room})}


def test_nothing_that_serves_imports_the_commands_of_a_client() -> None:
    commands = {"cli", "demo"}
    assert {
        module_of(f) for f in FILES if {room_of(m) for m in ours(f)} & commands and f.parent.name not in commands
    } == {"gateway.__main__"}
    tree = parsed(ROOT / "__main__.py")
    assert not {m for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom) for m in imported(node)} & {
        m for m in imported(tree) if m.split(".")[1:2] in (["cli"], ["demo"])
    }


def test_no_files_import_each_other_in_a_circle() -> None:
    arrows = {module_of(file): ours(file) for file in FILES}
    done: set[str] = set()

    def visit(module: str, path: tuple[str, ...]) -> None:
        assert module not in path, " -> ".join((*path, module))
        if module not in done:
            for other in sorted(arrows.get(module, ())):
                visit(other, (*path, module))
            done.add(module)

    for module in arrows:
        visit(module, ())


def test_few_files_stand_outside_the_rooms() -> None:
    assert len(list(ROOT.glob("*.py"))) <= 10
    rooms = {d.name for d in ROOT.iterdir() if (d / "__init__.py").exists()}
    assert rooms == {*KNOWS, "cli", "demo"} - {"errors", "caller_identity"}


def test_each_room_is_small_and_says_what_is_in_it() -> None:
    for init in ROOT.glob("*/__init__.py"):
        assert len(list(init.parent.glob("*.py"))) <= ROOM_FILES_MAX, init
        said = ast.get_docstring(parsed(init)) or ""
        assert not [file for file in init.parent.glob("[a-z]*.py") if file.stem not in said], f"{init} does not say"


def test_the_deciding_files_are_the_share_that_the_design_says() -> None:
    """More than a quarter of the lines (DESIGN 9.1)."""

    def lines(files: list[Path]) -> int:
        return sum(len(file.read_text().splitlines()) for file in files)

    assert 0.25 < lines(DECIDING) / lines(FILES) < 0.38


def test_what_the_deciding_files_import() -> None:
    allowed = ALLOWED | {*map(module_of, DECIDING)} | {"gateway.errors", "gateway.caller_identity"}
    assert not {file.stem: more for file in DECIDING if (more := imported(parsed(file)) - allowed)}


@pytest.mark.parametrize("file", DECIDING, ids=module_of)
def test_what_the_deciding_files_do_not_do(file: Path) -> None:
    tree = parsed(file)
    assert not {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)} & BUILTINS
    assert not {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)} & CLOCKS
    waits = (ast.AsyncFunctionDef, ast.Await, ast.AsyncFor, ast.AsyncWith)
    assert not [node for node in ast.walk(tree) if isinstance(node, waits)]


# ---- sizes and names ----

FILE_LINES_MAX: Final = 450
LINES_MAX: Final = {ast.ClassDef: 220, ast.FunctionDef: 45, ast.AsyncFunctionDef: 45}


def test_files_classes_and_functions_are_of_a_size_to_read() -> None:
    """Decorators and docstrings count, and what is inside."""
    files = {module_of(file): len(file.read_text().splitlines()) for file in FILES}
    assert not {module: lines for module, lines in files.items() if lines > FILE_LINES_MAX}
    assert not [
        f"{module_of(file)}.{node.name}: {lines} lines"
        for file in FILES
        for node in ast.walk(parsed(file))
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        for first in [min(each.lineno for each in (node, *node.decorator_list))]
        if (lines := (node.end_lineno or first) - first + 1) > LINES_MAX[type(node)]
    ]


def test_no_two_classes_or_aliases_have_one_name() -> None:
    """A leading underscore makes no other name of it."""
    where = defaultdict(list)
    for file in FILES:
        for node in ast.walk(parsed(file)):
            if isinstance(node, ast.ClassDef):
                where[node.name.lstrip("_")].append(module_of(file))
            elif isinstance(node, ast.AnnAssign) and ast.unparse(node.annotation).endswith("TypeAlias"):
                where[ast.unparse(node.target).lstrip("_")].append(module_of(file))
    assert not {name: modules for name, modules in where.items() if len(modules) > 1}


# ---- patterns ----

_WITHOUT_RETURN: Final = re.compile(r"\(\?>|(?:\)|%[bs]|^)(?:[*+?]|\{\d*,?\d*\})\+")


def without_return(pattern: str) -> bool:
    """Whether a pattern, or a part of one, has an atomic group, or repeats one possessively."""
    return bool(_WITHOUT_RETURN.search(re.sub(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]", "x", pattern, flags=re.DOTALL)))


def test_no_group_is_possessive() -> None:
    """Python 3.11.0 to 3.11.4 matches such groups wrongly, where what they hold may turn back (python/cpython#106052).

    A plain group that is repeated without limit takes memory for each turn instead: write neither, or give a limit.
    """
    for text in ("(?>ab)", "(?:ab)*+", "x(?:(?:a|b)c)?+", "(?=(?:ab)++)", "(?:a|(?:bc){2}+)", "(?:%b)*+", ")*+", "*+"):
        assert without_return(text), text
    for text in ("[ab]*+", "a++", r"\w?+", ".*+", "(?:ab)*", r"[(\])*+]", r"\)*+", "[])*+]"):
        assert not without_return(text), text
    texts = {(n.value, file) for file in FILES for n in ast.walk(parsed(file)) if isinstance(n, ast.Constant)}
    assert not {
        (text, file)
        for text, file in texts
        if isinstance(text, str | bytes) and without_return(text if isinstance(text, str) else text.decode("latin-1"))
    }
