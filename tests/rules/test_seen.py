"""What is kept of the ids that callers have seen: whose, how many, how much memory (DESIGN 7.12)."""

import tracemalloc

import pytest

from gateway.caller_identity import Key, ServerKey, Who
from gateway.config import IndexLimits
from gateway.mcp.task import Moment
from gateway.owners import task_ids_seen_by_caller as seeing
from gateway.owners.task_ids_seen_by_caller import IDLE_S, IDS_OF_CREDENTIALS, IDS_OF_SESSION, Owners

RESEARCH = ServerKey("research")
KEY = Key.of(RESEARCH, b"/mcp", b"s-1", Who(b"token", b"kin", True))
RENEWED = KEY._replace(identity=b"renewed")
OTHER = Key.of(RESEARCH, b"/mcp", b"s-9", Who(b"another", b"kin", True))
AGAIN = Key.of(RESEARCH, b"/mcp", b"s-2", Who(b"token", b"kin", True))


def found(owners: Owners, key: Key, at: float = 0.0) -> list[list[str]]:
    return [[i for i, _ in ids.since(0)] for ids in owners.of(owners.owners_of(key), Moment(0, at))]


def note(owners: Owners, key: Key, *names: str, order: int = 1, at: float = 0.0, made: bool = False) -> None:
    owners.note(owners.owners_of(key), names, Moment(order, at), made)


def test_the_newest_ids_of_each_owner_are_kept() -> None:
    owners = Owners(IndexLimits())
    names = [f"t-{number}" for number in range(IDS_OF_SESSION + 10)]
    for number, name in enumerate(names, 1):
        note(owners, KEY, name, order=number, made=True)
    assert found(owners, KEY) == [names[10:], names[-IDS_OF_CREDENTIALS:]]
    assert found(owners, RENEWED) == [names[10:]]
    assert found(owners, AGAIN) == [names[-IDS_OF_CREDENTIALS:]]
    note(owners, OTHER, "t" * (seeing.ID_CHARS_MAX + 1))
    assert not found(owners, OTHER), "one that is long is not kept"


def test_polls_of_more_tasks_than_are_kept_displace_nothing() -> None:
    """Each would be new again, and be asked for again in each other session."""
    owners = Owners(IndexLimits())
    names = [f"t-{number}" for number in range(IDS_OF_CREDENTIALS + 500)]
    for order, name in enumerate(names * 2, 1):
        note(owners, KEY, name, order=order)
    assert found(owners, AGAIN) == [names[:IDS_OF_CREDENTIALS]]
    owners.deny(owners.owners_of(AGAIN), names[5], 9, had_it=True)
    note(owners, KEY._replace(session=b"s-4"), *names, order=10)
    assert sorted(found(owners, AGAIN)[0]) == sorted(names[:IDS_OF_CREDENTIALS]), "but what passes again"


@pytest.mark.parametrize("session", [b"s-3", b""])
def test_what_was_denied_is_found_again_once_it_has_passed_in_another_session(session: bytes) -> None:
    """For good it was not: two denials in one session took it from all later ones. What its own session polls is no
    news: of a server that keeps sessions apart each other one would ask again behind each poll.
    """
    owners, another = Owners(IndexLimits()), AGAIN._replace(session=session)
    note(owners, KEY, "t-1")
    owners.deny(owners.owners_of(AGAIN), "t-1", 2, had_it=False)
    note(owners, KEY, "t-1", order=3)
    assert found(owners, AGAIN) == [[]]
    note(owners, another, "t-1", order=4)
    assert found(owners, AGAIN) == [["t-1"]]


def test_ids_go_after_a_day_without_a_use() -> None:
    owners = Owners(IndexLimits())
    for number in range(3):
        note(owners, KEY, "t-1", at=number * (IDLE_S - 1))
    assert found(owners, KEY, 2 * (IDLE_S - 1)) == [["t-1"], ["t-1"]]
    assert found(owners, KEY, 3 * IDLE_S) == []


@pytest.mark.parametrize("letter", ["t", "ж"])
def test_the_memory_of_ids_is_counted_and_bounded(letter: str) -> None:
    owners = Owners(IndexLimits(memory_bytes_max=16 << 20))
    tracemalloc.start()
    for number in range(IDS_OF_SESSION):
        note(owners, RENEWED._replace(has_credentials=False), f"{letter * 28}-{number:06}", order=number + 1000)
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert taken <= owners.stored.size_bytes <= 1.5 * taken
    for number in range(20):
        for part in range(500):
            note(owners, KEY._replace(session=b"%d" % number), f"{letter * 200}-{part}")
        assert owners.stored.size_bytes <= (16 << 20) // seeing._SHARE


def test_owners_have_a_number() -> None:
    owners = Owners(IndexLimits(sessions_max=5))
    for number in range(20):
        note(owners, KEY._replace(session=b"%d" % number, identity=b"%d" % number), "t-1")
    assert len(owners.stored.all()) == 10
