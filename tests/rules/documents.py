"""Random JSON documents as text, and what they say by the standard library's reader.

White space and escapes are random, objects may name a member twice, numbers may be larger than any machine's. `pairs`
reads a document without loss: members in order, numbers as written.
"""

import json
import random
from typing import Any, NamedTuple

from hypothesis import strategies as st


class Number(NamedTuple):
    text: str


class Object(NamedTuple):
    """An object: its members in order, a name perhaps twice."""

    members: tuple[tuple[str, Any], ...]

    def last(self, name: str) -> int | None:
        """The position of the member of that name that counts."""
        found = [i for i, (key, _) in enumerate(self.members) if key == name]
        return found[-1] if found else None


def pairs(data: bytes) -> Any:
    """What a JSON document says, nothing lost but white space and escapes."""
    return json.loads(
        data.decode(), parse_int=Number, parse_float=Number, object_pairs_hook=lambda members: Object(tuple(members))
    )


_SHORT = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r", "\b": "\\b", "\f": "\\f", "/": "\\/"}


def _character(character: str, rng: random.Random) -> str:
    must = character in '"\\' or character < " "
    if character in _SHORT and (must or rng.random() < 0.3) and rng.random() < 0.7:
        return _SHORT[character]
    if must or rng.random() < 0.1:
        units = character.encode("utf-16-be")
        hexes = [units[i : i + 2].hex() for i in range(0, len(units), 2)]
        return "".join("\\u" + (h.upper() if rng.random() < 0.5 else h) for h in hexes)
    return character


def _space(rng: random.Random) -> str:
    return "".join(rng.choices(" \t\r\n", k=rng.choice((0, 0, 0, 1, 2))))


def text(value: Any, rng: random.Random) -> str:
    """A value as JSON, in one of the many ways to write it, with white space around."""
    match value:
        case None | True | False:
            body = json.dumps(value)
        case Number():
            body = value.text
        case str():
            body = '"' + "".join(_character(c, rng) for c in value) + '"'
        case Object():
            members = [
                f"{_space(rng)}{text(name, rng).strip()}{_space(rng)}:{text(v, rng)}" for name, v in value.members
            ]
            body = "{" + (",".join(members) or _space(rng)) + "}"
        case list():
            body = "[" + (",".join(text(v, rng) for v in value) or _space(rng)) + "]"
        case _:
            raise TypeError(value)
    return _space(rng) + body + _space(rng)


def of(members: dict[str, Any]) -> Object:
    return Object(tuple(members.items()))


_TRICKY = [
    *("a", "b", "tasks", "list", "{", "}", "[{", '"', '\\"', ',"a":', "\\", ":", "é", "\u2028"),
    *("\U0001f600", "", "\\u"),
]

numbers = st.sampled_from(
    ["0", "-0", "1", "-17", "1.50", "1e400", "-2E-999", "9007199254740993", "18446744073709551616", "1" * 60]
).map(Number)
strings = st.sampled_from(_TRICKY) | st.text(max_size=4)  # lone surrogates are no text
names = st.sampled_from(_TRICKY) | st.sampled_from(["a", "b"])


def objects(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Object]:
    return st.lists(st.tuples(names, values), max_size=3).map(lambda members: Object(tuple(members)))


values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | numbers | strings,
    lambda inner: st.lists(inner, max_size=4) | objects(inner),
    max_leaves=6,
)


@st.composite
def documents(draw: st.DrawFn, value: st.SearchStrategy[Any] = values) -> bytes:
    return text(draw(value), random.Random(draw(st.integers(0, 2**32)))).encode()


def at(value: Any, path: tuple[str, ...]) -> tuple[bool, Any]:
    """Whether there is a value at `path`, and it; of a member that is given twice the last one counts."""
    for name in path:
        position = value.last(name) if isinstance(value, Object) else None
        if position is None:
            return False, None
        value = value.members[position][1]
    return True, value


def changed(value: Any, path: tuple[str, ...], new: Any) -> Any:
    if not path:
        return new
    assert isinstance(value, Object)
    position = value.last(path[0])
    assert position is not None
    members = list(value.members)
    members[position] = (path[0], changed(members[position][1], path[1:], new))
    return Object(tuple(members))


def paths(value: Any) -> list[tuple[str, ...]]:
    """The paths to all values that count, the value itself first."""
    found: list[tuple[str, ...]] = [()]
    if isinstance(value, Object):
        for name in dict.fromkeys(name for name, _ in value.members):
            position = value.last(name)
            assert position is not None
            found += [(name, *rest) for rest in paths(value.members[position][1])]
    return found


def inserted(before: bytes, after: bytes) -> bool:
    """Whether `after` is `before` with bytes put in at one place and nothing else done to it."""
    more = len(after) - len(before)
    return more > 0 and any(
        after.startswith(before[:i]) and after[i + more :] == before[i:] for i in range(len(before) + 1)
    )
