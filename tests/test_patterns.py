"""The regular expressions of gateway/: every Python that people have must find the same with them (.ci/pythons)."""

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path
from re import _constants, _parser  # type: ignore[attr-defined]
from typing import Any, Final, NamedTuple

from gateway.http import address_rewriting

ROOT: Final = Path(__file__).parent.parent
# What calls of these names take first is a pattern: those of `re`, and two functions of config/value_readers.py.
CALLED: Final = {"compile", "search", "match", "fullmatch", "split", "findall", "finditer", "sub", "subn"}
VALUES: Final = "gateway/config/value_readers.py"
# Stands for the names that only a running function knows.
LOCALS: Final[dict[str, Any]] = {"name": b"data", "authority": r"[a-z.:]+", "choices": ("a", "b"), "any_of": b"a|b"}
PASSED_ON: Final = {(VALUES, "pattern")}  # what `_match` is given


class Pattern(NamedTuple):
    where: str
    written: str | bytes
    flags: int

    @property
    def text(self) -> str:
        return self.written if isinstance(self.written, str) else self.written.decode("latin-1")


def _is_one(file: str, call: ast.Call) -> bool:
    function = call.func
    if isinstance(function, ast.Attribute):
        return isinstance(function.value, ast.Name) and function.value.id == "re" and function.attr in CALLED
    return file == VALUES and isinstance(function, ast.Name) and function.id in ("_match", "_matching")


def patterns() -> Iterator[Pattern]:
    for path in sorted((ROOT / "gateway").rglob("*.py")):
        file = str(path.relative_to(ROOT))
        module = importlib.import_module(file.removesuffix(".py").replace("/", ".").removesuffix(".__init__"))
        for call in ast.walk(ast.parse(path.read_text())):
            if (
                not (isinstance(call, ast.Call) and _is_one(file, call))
                or (file, ast.unparse(call.args[0])) in PASSED_ON
            ):
                continue
            has_flags = isinstance(call.func, ast.Attribute) and call.func.attr == "compile" and len(call.args) > 1
            given = [eval(ast.unparse(part), vars(module) | LOCALS) for part in call.args[: 1 + has_flags]]
            yield Pattern(f"{file}:{call.lineno}", given[0], int(given[1]) if has_flags else 0)


def groups_without_return(tree: Any) -> Iterator[str]:
    """The atomic groups of a parsed pattern, and the possessive repeats of more than one character or class."""
    for op, argument in tree:
        if op is _constants.ATOMIC_GROUP:
            yield "(?>...)"
        elif op is _constants.POSSESSIVE_REPEAT and [inner for inner, _ in argument[-1]] not in ONLY:
            yield "(?:...)*+"
        for part in _parts(argument):
            yield from groups_without_return(part)


ONE: Final = (_constants.LITERAL, _constants.NOT_LITERAL, _constants.IN, _constants.ANY)
ONLY: Final = [[op] for op in ONE]


def _parts(argument: Any) -> Iterator[Any]:
    """The patterns within what an operation of a parsed pattern takes."""
    if isinstance(argument, _parser.SubPattern):
        yield argument
    elif isinstance(argument, list | tuple):
        for part in argument:
            yield from _parts(part)


def test_all_patterns_are_read() -> None:
    """As many as there are, or what stands in a new form is not compared."""
    written = sum(path.read_text().count("re.compile(") for path in (ROOT / "gateway").rglob("*.py"))
    found = [pattern.written for pattern in patterns()]
    assert len(found) > written > 40 and address_rewriting._ORIGIN.pattern in found


def test_the_reader_finds_possessive_groups() -> None:
    for text in ("(?>ab)", "(?:ab)*+", "x(?:(?:a|b)c)?+", "(?=(?:ab)++)", "(a)*+", "(?:a|(?:bc){2}+)"):
        assert list(groups_without_return(_parser.parse(text))), text
    for text in ("[ab]*+", "a++", r"\w?+", ".*+", "(?:ab)*", "(?:a)*+"):
        assert not list(groups_without_return(_parser.parse(text))), text


def test_no_group_is_possessive() -> None:
    """Python 3.11.0 to 3.11.4 matches such groups wrongly, where what they hold may turn back (python/cpython#106052).

    A plain group that is repeated without limit takes memory for each turn instead: write neither, or give a limit.
    """
    possessive = {
        each.where for each in patterns() for _ in groups_without_return(_parser.parse(each.text, each.flags))
    }
    assert not possessive
