"""One small fault in the gateway's source, on purpose: a test that cannot fail proves nothing.

A fault is named by what it does. Its place is a regular expression, which is looked for in all of gateway/: a function
that has moved, or that has another name, is found where it is.
"""

import ast
import re
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, Final

import gateway

FOLDER: Final = Path(gateway.__file__).parent
Change = tuple[str, ...]
"""A pattern that gateway/ has once, and what stands there instead; or several, one after the other."""

Fault = Callable[[], AbstractContextManager[None]]


class Lost(AssertionError):
    """A fault has no place any more, or more than one."""


def faults(places: dict[str, Change]) -> dict[str, Fault]:
    """What puts each of these faults in, by its name."""
    return {what: partial(faulty, what, change) for what, change in places.items()}


@contextmanager
def faulty(what: str, change: Change) -> Iterator[None]:
    """The gateway with this fault. Raises Lost."""
    edits: dict[tuple[Path, str], list[tuple[str, str]]] = {}
    for pattern, new in zip(change[::2], change[1::2], strict=True):
        edits.setdefault(_place(what, pattern), []).append((pattern, new))
    codes = [_changed(what, *place, given) for place, given in edits.items()]
    before = [function.__code__ for function, _ in codes]
    try:
        for function, code in codes:
            function.__code__ = code
        yield
    finally:
        for (function, _), code in zip(codes, before, strict=True):
            function.__code__ = code


@cache
def _sources() -> dict[Path, str]:
    return {path: path.read_text() for path in sorted(FOLDER.rglob("*.py"))}


def _place(what: str, pattern: str) -> tuple[Path, str]:
    """The file and the function that have the text."""
    found = [(path, match.start()) for path, text in _sources().items() for match in re.finditer(pattern, text)]
    if len(found) != 1:
        files = ", ".join(str(path.relative_to(FOLDER)) for path, _ in found)
        raise Lost(f"the fault {what!r}: gateway/ has {pattern!r} {len(found)} times, not once: {files}")
    [(path, at)] = found
    line = _sources()[path].count("\n", 0, at) + 1
    for name, node in _functions(path):
        if node.lineno <= line <= (node.end_lineno or 0):
            return path, name
    raise Lost(f"the fault {what!r}: {pattern!r} is in no function of {path.relative_to(FOLDER)}")


def _functions(path: Path) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """The functions of a file, and the methods of its classes, by name."""
    scopes: list[tuple[str, Any]] = [("", ast.parse(_sources()[path]))]
    for prefix, scope in scopes:
        for node in scope.body:
            if isinstance(node, ast.ClassDef):
                scopes.append((f"{prefix}{node.name}.", node))
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield prefix + node.name, node


def _changed(what: str, path: Path, name: str, changes: list[tuple[str, str]]) -> tuple[FunctionType, CodeType]:
    module = import_module(".".join(path.relative_to(FOLDER.parent).with_suffix("").parts).removesuffix(".__init__"))
    value: Any = module
    for part in name.split("."):
        value = vars(value)[part]
    function = next((of for of in (getattr(value, a, None) for a in ("fget", "__func__", "__wrapped__")) if of), value)
    [node] = [node for each, node in _functions(path) if each == name]
    lines = _sources()[path].split("\n")[node.lineno - 1 : node.end_lineno]
    text = textwrap.dedent("\n".join(lines)) + "\n"
    for pattern, new in changes:
        text, count = re.subn(pattern, new, text)
        assert count == 1, f"the fault {what!r}: {pattern!r} is found {count} times in {name}"
    free = function.__code__.co_freevars  # `__class__`, of a method with super()
    outer = [f"def made({', '.join(free)}):", textwrap.indent(text, " "), f" return {node.name}"]
    made: dict[str, Any] = {}
    exec(compile("\n".join(outer), str(path), "exec"), vars(sys.modules[module.__name__]), made)
    code = made["made"](*free).__code__
    assert code.co_freevars == free, f"the fault {what!r}: {name} has other variables than before"
    return function, code
