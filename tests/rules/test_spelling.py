"""Names that other readers of JSON may read otherwise (mcp/ids_in_messages.py), against readers that do."""

from collections.abc import Callable, Iterator
from typing import Any, Final, TypeAlias

from hypothesis import given
from hypothesis import strategies as st

from tests.rules.documents import Object, pairs
from tests.rules.plain import asked, read

Pairs: TypeAlias = tuple[tuple[str, Any], ...]

NAMES: Final = ("id", "method", "params", "_meta", "taskId", "task", "ttl")
OTHERS: Final = ("jsonrpc", "arguments", "name", "idle", "result", "params2", "")
FOLDED: Final = {"s": "\u017f", "k": "\u212a", "i": "\u0131"}


# ---- other readers ----


READERS: Final[list[Callable[[Pairs, str], Iterator[Any]]]] = [
    lambda pairs, name: (value for given, value in reversed(pairs) if given == name),  # the last one wins
    lambda pairs, name: (value for given, value in pairs if given == name),  # the first one
    lambda pairs, name: (value for given, value in reversed(pairs) if given.upper().lower() == name.lower()),  # Go's
]


def seen(data: bytes, pick: Any) -> tuple[Any, ...]:
    """What one reader finds of that on which a guard decides."""

    def of(value: Any, name: str) -> Any:
        return next(pick(value.members, name), None) if isinstance(value, Object) else None

    message = pairs(data)
    task = of(of(message, "params"), "task")
    method = of(message, "method")
    ttl = of(task, "ttl")
    names = (of(of(message, "params"), name) for name in ("_meta", "taskId"))
    named = [isinstance(value, Object) or value for value in names]
    return of(message, "id") is not None, method, task is not None, None if isinstance(ttl, Object) else ttl, *named


# ---- messages ----


def spelled(name: str) -> st.SearchStrategy[str]:
    """The text of a name in JSON: mostly as it is, or with capitals, escapes, letters that fold."""

    def letter(char: str) -> st.SearchStrategy[str]:
        ways = [char, char.upper(), f"\\u{ord(char):04x}", f"\\u{ord(char.upper()):04X}"]
        if char in FOLDED:
            ways += [FOLDED[char], f"\\u{ord(FOLDED[char]):04x}"]
        return st.sampled_from(ways)

    odd = st.tuples(*map(letter, name)).map("".join)
    return st.just(name) | st.just(name) | odd


ANY_NAME = st.sampled_from(NAMES + OTHERS).flatmap(spelled)
SCALARS = st.sampled_from(["1", "null", '"tasks/get"', '"a"', '"\\"id\\":"', "[]", '"params"', '"\\\\"', "0.5"])


def written(pairs: list[tuple[str, str]]) -> str:
    return "{" + " , ".join(f'"{name}" :{value}' for name, value in pairs) + "}"


def objects(*inner: tuple[str, st.SearchStrategy[str]]) -> st.SearchStrategy[str]:
    """An object that may have these members, and any others, in any order."""
    members = [st.tuples(spelled(name), value) for name, value in inner]
    some: st.SearchStrategy[list[tuple[str, str]]] = st.lists(
        st.one_of(*members, st.tuples(ANY_NAME, DEEP)), max_size=4
    )
    return some.map(written)


DEEP = st.recursive(
    SCALARS, lambda values: st.lists(st.tuples(ANY_NAME, values), max_size=3).map(written), max_leaves=6
)
TTLS = st.sampled_from(["1", "99999", "null", '"x"'])
TASKS = objects(("ttl", TTLS))
PARAMS = objects(("task", TASKS), ("arguments", DEEP), ("taskId", SCALARS), ("_meta", DEEP))
METHODS = st.sampled_from(['"tasks/get"', '"tools/call"', '"ping"'])
MEMBERS = st.one_of(
    st.tuples(spelled("id"), st.just("7")),
    st.tuples(spelled("method"), METHODS),
    st.tuples(spelled("params"), PARAMS),
    st.tuples(st.just("result"), DEEP),
    st.tuples(ANY_NAME, DEEP),
)
MESSAGES = st.lists(MEMBERS, max_size=5).map(lambda some: written([("jsonrpc", '"2.0"'), *some]).encode())


@given(MESSAGES)
def test_where_nothing_is_in_doubt_every_reader_finds_the_same(data: bytes) -> None:
    message = read(data, has_guards=True)
    if message is None:
        return
    doubts = message.doubts
    ours, *others = (seen(data, pick) for pick in READERS)
    if not doubts:
        assert others == [ours, ours]
    elif "ttl" not in doubts:
        assert [other[3] for other in others] == [ours[3]] * 2, "a ttl that can be told is told"


@st.composite
def plain(draw: st.DrawFn) -> bytes:
    """A message in which each name stands once where it counts, and anything in what is no concern of the guards'."""
    task = [("ttl", draw(TTLS)), ("x", draw(DEEP))]
    params = [("task", written(task)), ("arguments", draw(DEEP)), ("_meta", draw(DEEP)), ("taskId", draw(DEEP))]
    message = [("jsonrpc", '"2.0"'), ("id", draw(DEEP)), ("method", '"tools/call"'), ("params", written(params))]
    return written(draw(st.permutations(message))).encode()


@given(plain())
def test_what_stands_elsewhere_is_free(data: bytes) -> None:
    assert asked(data, has_guards=True).doubts == frozenset()


def test_what_would_take_long_to_read_is_in_doubt_and_large_arguments_are_not() -> None:
    many = b",".join([b'{"ID":1}'] * 20_000)
    call = b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"%b":[%b]}}'
    for name, doubts in (b"arguments", set()), (b"argument", set(NAMES) - {"ttl"}):
        data = call % (name, many)
        assert asked(data, has_guards=True).doubts == doubts
    deep = b'{"jsonrpc":"2.0","id":1,"ID":' + b"[" * 900 + b"]" * 900 + b"}"
    assert "id" in asked(deep, has_guards=True).doubts
