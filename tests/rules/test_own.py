"""Whose a task is: which go first, for how long, how much memory; and which tasks a message names (DESIGN 8.16)."""

import json
import tracemalloc
from itertools import count
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.caller_identity import Key
from gateway.config import IndexLimits
from gateway.errors import Ambiguous
from gateway.mcp import jsonrpc
from gateway.mcp.ids_in_messages import Made, told_of
from gateway.mcp.task import Moment
from gateway.owners.task_ids_seen_by_caller import IDLE_S, IDS_OF_SESSION
from gateway.owners.task_owners import OwnTasks
from gateway.task_ownership_guard import asked_for
from tests.rules import plain
from tests.rules.test_seen import KEY, OTHER


class Own(OwnTasks):
    """Owners, with a clock that the test sets."""

    def __init__(self, limits: IndexLimits | None = None) -> None:
        self.at, order = 0.0, count(1)
        super().__init__(limits or IndexLimits(), lambda: Moment(next(order), self.at), lambda *_: None)

    def made(self, key: Key, *names: str, ttl_s: float = 0.0) -> None:
        for name in names:
            self.make(key.server, self.owners_of(key), Made(name, ttl_s))

    def of_key(self, key: Key, *names: str) -> list[str]:
        return [name for name in names if self.owns(self.owners_of(key), name)]


def test_of_too_many_the_first_goes() -> None:
    own = Own()
    own.made(KEY, *(f"t-{number}" for number in range(IDS_OF_SESSION)), "a", "b", "c")
    assert own.of_key(KEY, "t-0", "t-1", "t-2", "t-3", "a", "b", "c") == ["t-3", "a", "b", "c"]
    for _ in range(50):
        own.sweep()
    assert len(own.makings) == IDS_OF_SESSION


@pytest.mark.parametrize(("ttl_s", "kept_s"), [(0, IDLE_S), (60, 3720), (3 * IDLE_S, 6 * IDLE_S + 3600)])
def test_a_task_is_his_for_twice_its_ttl_and_an_hour_after_its_last_use(ttl_s: float, kept_s: float) -> None:
    own = Own()
    own.made(KEY, "1", "2", ttl_s=ttl_s)
    own.at = kept_s - 1
    own.note(own.owners_of(KEY), ["1"], own._now())
    for own.at, his in ((kept_s - 1, ["1", "2"]), (2 * kept_s - 2, ["1"]), (2 * kept_s, [])):
        for _ in range(2):
            own.sweep()
        assert own.of_key(KEY, "1", "2") == his
    assert not own.makings and not own.stored.all()


@pytest.mark.parametrize("ends", ["the owner of 10,000 tasks", "20,000 owners"])
def test_however_much_ends_no_turn_is_long(ends: str) -> None:
    """All of it is nobody's at once, or soon; what is forgotten of it is so bit by bit."""
    own = Own(IndexLimits(memory_bytes_max=1 << 30))
    if ends == "20,000 owners":
        keys = [KEY._replace(session=b"%d" % number, identity=b"%d" % number) for number in range(10_000)]
        own.made(keys[0], "first")
        for number, key in enumerate(keys):
            own.made(key, f"t-{number}")
        own.at = 3 * IDLE_S
    else:
        own.made(KEY, *(f"t-{number}" for number in range(IDS_OF_SESSION)))
        before = len(own.makings)
        own.end_all(KEY)
        own.stored.remove(own.owners_of(KEY)[1])
        assert len(own.makings) == before
        assert own.of_key(KEY, "t-0", "t-9999") == []
    turns, before = 0, 0
    while own.makings:
        before = len(own.makings)
        own.sweep()
        assert before - len(own.makings) <= 250
        turns += 1
    assert turns >= 5


def test_what_an_owner_that_left_had_is_the_next_makers() -> None:
    own = Own()
    own.made(KEY, "1", "2")
    for owner in own.owners_of(KEY):
        own.stored.remove(owner)
    own.made(OTHER, "1")
    own.made(KEY, "2")
    for _ in range(3):
        own.sweep()
    assert (own.of_key(KEY, "1", "2"), own.of_key(OTHER, "1", "2")) == (["2"], ["1"])
    assert len(own.makings) == 2


def test_who_has_lost_all_his_tasks_and_makes_one_is_counted_once() -> None:
    """Each id that a server gave again was another owner more, until nobody had room."""
    own = Own()
    for key in (KEY, OTHER) * 3:
        own.made(key, "1")
    assert own.stored.count == len(own.stored.all()) == len(own.owners_of(OTHER)), "who has none is forgotten"
    assert own.stored.size_bytes == sum(ids.size_bytes for ids in own.stored.all())


def test_owners_take_the_memory_that_is_counted() -> None:
    own = Own()
    owners = own.owners_of(KEY)
    tracemalloc.start()
    for number in range(IDS_OF_SESSION):
        own.make(KEY.server, owners, Made(f"{number:032}", 0.0))
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert 0.5 < own.stored.size_bytes / taken < 2.0


def test_what_has_no_room_is_nobodys() -> None:
    own = Own(IndexLimits(memory_bytes_max=100_000))
    for number in range(100):
        own.made(OTHER._replace(session=b"%d" % number, identity=b"%d" % number), f"t-{number}")
    assert len(own.makings) < 30
    assert own.stored.size_bytes <= 25_000


ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)


@given(ANY_JSON, st.sampled_from(["params", "result"]), st.lists(st.sampled_from(["a", "b", "tasks"]), max_size=3))
def test_an_id_is_found_wherever_it_stands(other: Any, part: str, path: list[str]) -> None:
    inner: Any = {"taskId": "x", "other": other}
    for name in path:
        inner = {name: [inner, other]}
    said = {"jsonrpc": "2.0", part: inner, **({"method": "any"} if part == "params" else {"id": 1})}
    for data in (
        json.dumps(said).encode(),
        json.dumps(said, ensure_ascii=False).replace("askId", "\\u0061skId").encode(),
        json.dumps(said, ensure_ascii=False).replace("askId", "a\u017f\u212aId").encode(),
    ):
        message = jsonrpc.parse(data)
        assert message is not None
        assert told_of(message, data) == ["x"]


CALL = b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"arguments":{"a":[%b],"b":"\\u006b"}}}'


@pytest.mark.parametrize("each", [b"{}", b"[]"])
@pytest.mark.parametrize("body", [b"[%b]", b'{"a":[%b]}', CALL])
def test_what_would_take_long_to_read_is_not_read(body: bytes, each: bytes) -> None:
    """A million objects take half a second, in which nobody is served."""
    many = body % b",".join([each] * 200_000)
    with pytest.raises(Ambiguous):
        asked_for(plain.read(many, True, True), many)
    told = b'{"jsonrpc":"2.0","method":"x","params":{"task":[%b]}}' % b",".join([each] * 200_000)
    assert told_of(plain.parsed(told), told) == [None], "it may name any task"
