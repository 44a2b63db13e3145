"""What is stored by key, against a definition in plain lists (DESIGN 7.7)."""

from hypothesis import given
from hypothesis import strategies as st

from gateway.config import IndexLimits
from gateway.identity import Key
from gateway.tasks.sessions import Session, Stored

BYTES_MAX, COUNT_MAX, IDLE_S = 100, 4, 10.0
STEPS = st.one_of(
    st.tuples(st.just("use"), st.integers(0, 6), st.integers(1, 120)),
    st.tuples(st.just("take out"), st.integers(0, 6), st.just(0)),
    st.tuples(st.just("wait"), st.just(0), st.integers(1, 6)),
    st.tuples(st.just("another"), st.integers(0, 6), st.integers(1, 120)),
)


class Thing(Session):
    """A session of any size."""

    def __init__(self, key: Key, size_bytes: int) -> None:
        super().__init__(key)
        self.now_bytes = size_bytes

    @property
    def size_bytes(self) -> int:
        return self.now_bytes


def key_of(number: int) -> Key:
    return Key("upstream", b"%d" % number, b"", b"")


@given(st.lists(STEPS, max_size=40))
def test_what_goes_and_what_stays(steps: list[tuple[str, int, int]]) -> None:
    gone: list[Session] = []
    limits = IndexLimits(memory_bytes_max=BYTES_MAX, sessions_max=COUNT_MAX, idle_timeout=IDLE_S)
    stored = Stored(limits, gone.append)
    things = {number: Thing(key_of(number), 1) for number in range(7)}
    plain: list[tuple[float, Thing, int]] = []  # when it was used, what, its size then: in order of use
    lost: list[Thing] = []
    now = 0.0
    for what, number, value in steps:
        if what == "wait":
            now += value
            stored.expire(now)
            lost += [thing for at, thing, _ in plain if now - at >= IDLE_S]
            plain = [each for each in plain if now - each[0] < IDLE_S]
        elif what == "take out":
            found = next((thing for _, thing, _ in plain if thing.key == key_of(number)), None)
            assert stored.take_out(key_of(number)) is found
            plain = [each for each in plain if each[1].key != key_of(number)]
        else:
            if what == "another":
                things[number] = Thing(key_of(number), 1)
            thing = things[number]
            thing.now_bytes = value
            plain = [each for each in plain if each[1].key != thing.key]
            assert stored.use(thing, now) is (value <= BYTES_MAX)
            if value > BYTES_MAX:
                lost.append(thing)
            else:
                plain.append((now, thing, value))
                while sum(size for _, _, size in plain) > BYTES_MAX or len(plain) > COUNT_MAX:
                    lost.append(plain.pop(0)[1])
        assert stored.all() == [thing for _, thing, _ in plain]
        assert stored.size_bytes == sum(size for _, _, size in plain)
        there = {thing.key: thing for _, thing, _ in plain}
        assert all(stored.get(key_of(number)) is there.get(key_of(number)) for number in range(7))
        assert gone == lost
