"""Which request a cancel can mean (DESIGN 5.7): a count of ids that is never too low."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.tasks import ids
from gateway.tasks.ids import RequestIds

sessions = st.sampled_from([b"a", b"b"])
request_ids = st.sampled_from([b"1", "1", b"0", b"10", "", None])


@given(st.lists(st.tuples(sessions, request_ids), max_size=12))
def test_an_id_is_single_where_it_was_used_once_and_nothing_passed_unread(
    used: list[tuple[bytes, bytes | str | None]],
) -> None:
    noted, count = RequestIds(), Counter[tuple[bytes, bytes | str | None]](used)
    for each in used:
        noted.note(*each)
    for session in (b"a", b"b"):
        for request_id in (b"1", "1", b"0", b"10", ""):
            single = count[session, request_id] == 1 and not count[session, None]
            assert noted.is_single(session, request_id) is single


@pytest.mark.parametrize("spelled", [b"1.0", b"1e0", b"10e-1", b"1.0000000000000000001"])
def test_numbers_of_one_value_are_one_id(spelled: bytes) -> None:
    """Peers that read numbers take them for one: another conversation may mean its own `1.0` when it cancels `1`."""
    noted = RequestIds()
    noted.note(b"a", spelled)
    noted.note(b"a", b"1")
    noted.note(b"a", b"2")
    assert not noted.is_single(b"a", b"1")
    assert noted.is_single(b"a", b"2.0")


def test_what_was_used_is_remembered_for_so_many_requests_and_the_memory_stays() -> None:
    noted = RequestIds()
    noted.note(b"mine", b"1")
    for number in range(ids._NOTED_MAX - 1):
        noted.note(b"others", b"%d" % number)
    noted.note(b"mine", b"1")
    assert not noted.is_single(b"mine", b"1")
    sessions = [b"mine %d" % number for number in range(100)]  # one slot of a session says that none is single
    for session in sessions:
        noted.note(session, b"1")
    for number in range(2 * ids._NOTED_MAX):
        noted.note(b"others", b"%d" % number)
    for session in sessions:
        noted.note(session, b"1")
    single = sum(noted.is_single(session, b"1") for session in sessions)
    assert single > 25, "forgotten, but for those that share a slot with others: some 40"
    assert len(noted._counters) == len(noted._before) == ids._COUNTERS
