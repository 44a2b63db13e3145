"""The regular expressions of gateway/: every Python that people have must find the same with them.

Other interpreters are those that are installed; PYTHONS names more, as commands, separated by commas (.ci/pythons).
"""

import ast
import importlib
import inspect
import json
import os
import random
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from re import _constants, _parser  # type: ignore[attr-defined]
from typing import Any, Final, NamedTuple

import pytest

from gateway.http import addresses

ROOT: Final = Path(__file__).parent.parent
# What calls of these names take first is a pattern: those of `re`, and two functions of config/values.py.
CALLED: Final = {"compile", "search", "match", "fullmatch", "split", "findall", "finditer", "sub", "subn"}
VALUES: Final = "gateway/config/values.py"
# Stands for the names that only a running function knows.
LOCALS: Final[dict[str, Any]] = {"name": b"data", "authority": r"[a-z.:]+", "choices": ("a", "b")}
PASSED_ON: Final = {(VALUES, "pattern")}  # what `_match` is given
SYSTEM: Final = [f"/usr/bin/python3.{minor}" for minor in (11, 13, 14)]
OTHERS: Final = [
    *(path for path in SYSTEM if Path(path).exists()),
    *(command for command in os.environ.get("PYTHONS", "").split(",") if command),
]


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


def _patterns() -> Iterator[Pattern]:
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


PATTERNS: Final = list(_patterns())


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
    assert len(PATTERNS) > written > 40
    assert addresses._ORIGIN.pattern in {pattern.written for pattern in PATTERNS}


def test_the_reader_finds_possessive_groups() -> None:
    for text in ("(?>ab)", "(?:ab)*+", "x(?:(?:a|b)c)?+", "(?=(?:ab)++)", "(a)*+", "(?:a|(?:bc){2}+)"):
        assert list(groups_without_return(_parser.parse(text))), text
    for text in ("[ab]*+", "a++", r"\w?+", ".*+", "(?:ab)*", "(?:a)*+"):
        assert not list(groups_without_return(_parser.parse(text))), text


@pytest.mark.parametrize("pattern", PATTERNS, ids=[pattern.where for pattern in PATTERNS])
def test_no_group_is_possessive(pattern: Pattern) -> None:
    """Python 3.11.0 to 3.11.4 matches such groups wrongly, where what they hold may turn back (python/cpython#106052).

    A plain group that is repeated without limit takes memory for each turn instead: write neither, or give a limit.
    """
    assert not list(groups_without_return(_parser.parse(pattern.text, pattern.flags)))


MARKS: Final = [*"\r\n \"\\:,-a0{}/@[]%'(;=?.N\xe9\xff", "\r\n", '\\"', "\\\\", "//", ":80", "[::1]", "a.b"]
WORDS: Final = ["data:", "data", ":x", "http://"]


def _character(item: Any, dice: random.Random) -> str:
    op, argument = item
    if op is _constants.RANGE:
        return chr(dice.randint(*argument))
    return chr(argument) if op is _constants.LITERAL else dice.choice("a0_ \r\n")


def example(tree: Any, dice: random.Random) -> str:
    """Text that a parsed pattern finds, or nearly: what must not follow may follow."""
    text = ""
    for op, argument in tree:
        if op is _constants.LITERAL:
            text += chr(argument)
        elif op is _constants.IN and argument[0][0] is not _constants.NEGATE:
            text += _character(dice.choice(argument), dice)
        elif op in ONE:
            text += dice.choice(MARKS)
        elif op is _constants.BRANCH:
            text += example(dice.choice(argument[1]), dice)
        elif op is _constants.SUBPATTERN:
            text += example(argument[-1], dice)
        elif op in (_constants.ASSERT, _constants.ASSERT_NOT):
            text += example(argument[1], dice) if dice.random() < 0.3 else ""
        elif op is not _constants.AT:
            least, most, body = argument
            text += "".join(example(body, dice) for _ in range(dice.randint(least, min(int(most), least + 3))))
    return text


def text_for(pattern: Pattern, dice: random.Random) -> str:
    """Examples of a pattern, other words and marks, in any order; now and then one character is gone."""
    tree = _parser.parse(pattern.text, pattern.flags)
    parts = [
        dice.choice(MARKS + WORDS) if dice.random() < 0.5 else example(tree, dice) for _ in range(dice.randint(1, 8))
    ]
    text = "".join(parts)
    gone = dice.randrange(2 * len(text) + 1)
    return text[:gone] + text[gone + 1 :]


def spans(pattern, flags, is_bytes, texts):  # type: ignore[no-untyped-def]  # it runs on other Pythons too
    """For each text a list: the spans of all groups of every place found. Bytes are written as Latin-1."""
    compiled = re.compile(pattern.encode("latin-1") if is_bytes else pattern, flags)
    read = [text.encode("latin-1") if is_bytes else text for text in texts]
    groups = range(compiled.groups + 1)
    return [[[place.span(group) for group in groups] for place in compiled.finditer(text)] for text in read]


EACH_LINE: Final = "for line in sys.stdin:\n    print(json.dumps(spans(*json.loads(line))), flush=True)"


@pytest.mark.skipif(not OTHERS, reason="no other Python is installed (/usr/bin/python3.11, python3.13, python3.14)")
@pytest.mark.parametrize("interpreter", OTHERS or [""])
def test_other_pythons_find_the_same(interpreter: str) -> None:
    """On Debian 12's Python three patterns found other things: a task with NaN was not read."""
    dice = random.Random(30)
    asked = [
        (pattern.text, pattern.flags, isinstance(pattern.written, bytes), [text_for(pattern, dice) for _ in range(300)])
        for pattern in PATTERNS
    ]
    program = f"import json, re, sys\n{inspect.getsource(spans)}\n{EACH_LINE}"
    command = [*shlex.split(interpreter), "-I", "-c", program]
    lines = "".join(json.dumps(one) + "\n" for one in asked)
    told = subprocess.run(command, input=lines, stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()
    for pattern, one, line in zip(PATTERNS, asked, told, strict=True):
        for text, here, there in zip(one[3], json.loads(json.dumps(spans(*one))), json.loads(line), strict=True):
            assert here == there, (pattern.where, text)


RARE: Final = ("gateway/transport/tls.py", "gateway/stdio/lines.py")  # whole documents


def test_examples_are_found() -> None:
    """Text that no pattern finds would prove nothing."""
    dice = random.Random(1)
    for pattern in PATTERNS:
        texts = [text_for(pattern, dice) for _ in range(300)]
        found = spans(pattern.text, pattern.flags, isinstance(pattern.written, bytes), texts)
        assert sum(map(bool, found)) >= 10 or pattern.where.startswith(RARE), pattern.where
