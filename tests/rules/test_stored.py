"""What is stored by key, against a definition in plain lists (DESIGN 7.7)."""

from hypothesis import given
from hypothesis import strategies as st

from gateway.owners.eviction import Space, Storable, Stored

BYTES_MAX, COUNT_MAX, IDLE_S = 100, 4, 10.0
STEPS = st.one_of(
    st.tuples(st.just("use"), st.integers(0, 6), st.integers(1, 120)),
    st.tuples(st.just("take out"), st.integers(0, 6), st.just(0)),
    st.tuples(st.just("wait"), st.just(0), st.integers(1, 6)),
    st.tuples(st.just("query"), st.integers(0, 6), st.integers(0, 1)),
)


class Thing(Storable[int]):
    """It has any size."""

    def __init__(self, key: int) -> None:
        self.key = key

    size_bytes = 1


@given(st.lists(STEPS, max_size=40))
def test_what_goes_and_what_stays(steps: list[tuple[str, int, int]]) -> None:
    stored: Stored[int, Thing] = Stored(Space(BYTES_MAX, COUNT_MAX, IDLE_S), groups_of=lambda n: (n % 3, "all"))
    things = {number: Thing(number) for number in range(7)}
    plain: list[tuple[float, Thing, int]] = []  # when it was used, what, its size then: in order of use
    now = 0.0
    for what, number, value in steps:
        if what == "wait":
            now += value
            stored.expire(now)
            used = [(now, thing, size) for at, thing, size in plain if now - at >= IDLE_S and thing.queries]
            plain = [each for each in plain if now - each[0] < IDLE_S] + used
        elif what == "take out":
            stored.remove(number)
            plain = [each for each in plain if each[1].key != number]
        elif what == "query":
            things[number].queries = value % 2
        else:
            thing = things[number]
            thing.size_bytes = value
            plain = [*(each for each in plain if each[1] is not thing), (now, thing, value)]
            stored.use(thing, now)
            if value > BYTES_MAX and not thing.queries:
                plain.pop()
            for each in list(plain):
                is_full = sum(size for _, _, size in plain) > BYTES_MAX or len(plain) > COUNT_MAX
                if is_full and not each[1].queries:
                    plain.remove(each)
        assert stored.all() == [thing for _, thing, _ in plain]
        assert stored.size_bytes == sum(size for _, _, size in plain)
        there = {thing.key: thing for _, thing, _ in plain}
        assert all(stored.get(number) is there.get(number) for number in range(7))
        for group in range(3):
            assert set(stored.of_group(group)) == {thing for thing in there.values() if thing.key % 3 == group}
        assert set(stored.of_group("all")) == {*there.values()}
        assert not there or stored._groups.keys() == {"all", *(number % 3 for number in there)}
