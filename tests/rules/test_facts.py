"""The facts of `taskgate try`, from lists: what they mean, and that no list that is JSON stops them."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gateway.cli import try_command as verdict
from gateway.cli.try_command import ByHand

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(max_size=5)
    | st.sampled_from(["working", "2026-01-01T00:00:00Z"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)
NAMES = st.sampled_from(["taskId", "status", "createdAt", "lastUpdatedAt", "statusMessage", "ttl"])
ANYTHING = st.lists(st.dictionaries(NAMES, JSON, max_size=6), max_size=6)


def read(tasks: list[dict[str, Any]], size: int = 10) -> ByHand:
    pages = [len(tasks[at : at + size]) for at in range(0, len(tasks), size)] or [0]
    return ByHand(tasks, pages, 100, True)


def made(count: int, **more: Any) -> list[dict[str, Any]]:
    """Tasks, the oldest first, their ids in no order."""
    return [
        {"taskId": f"{n * 7 % 10}-{n}", "status": "working", "createdAt": f"2026-01-01T00:00:{n:02}Z", **more}
        for n in range(count)
    ]


@given(ANYTHING, ANYTHING, JSON)
def test_any_list_has_facts_and_each_fact_has_words(
    one: list[dict[str, Any]], two: list[dict[str, Any]], can: Any
) -> None:
    first, second = read(one), read(two)
    known: dict[str, Any] = {
        "tasks": can,
        "by_hand": first.fact(),
        "statuses": second.statuses,
        "order": verdict.order(first, second),
        "instants_move": verdict.instants_move(first, second),
        "change": verdict.has_changed(first, second),
        "others_see": verdict.seen_by_others(first, two),
        "get_agrees": all(verdict.agree(task, task, False) for task in verdict.samples(second)),
    }
    for name, value in known.items():
        assert verdict.WORDS[name][1](value) or value is None  # what is not known has no line
    assert verdict.verdict({**known, "lists": True, "filters": None})[1].endswith(".")
    assert not verdict.has_changed(first, first)


@given(st.permutations(range(8)))
def test_the_order_is_that_of_the_instants(numbers: list[int]) -> None:
    tasks = made(8)
    shown = [tasks[n] for n in numbers]
    expected = {tuple(range(8)): "oldest first", tuple(range(7, -1, -1)): "newest first"}.get(tuple(numbers))
    said = verdict.order(read(shown), read(shown))
    ids = [task["taskId"] for task in shown]
    assert said == (expected or ("by id" if ids == sorted(ids) else "none to be seen"))
    turned = [*shown[1:], shown[0]]
    assert verdict.order(read(shown), read(turned)) == "another at each reading"


def test_timestamps_that_move_are_no_change_and_a_change_is_no_moving() -> None:
    before = made(3, lastUpdatedAt="2026-01-01T00:00:00Z")
    moved = [{**task, "createdAt": "2026-02-01T00:00:00Z"} for task in before]
    worked = [{**before[0], "status": "completed", "lastUpdatedAt": "2026-02-01T00:00:00Z"}, *before[1:]]
    for after, moves, changes in ((moved, True, False), (worked, False, True), (before, False, False)):
        assert verdict.instants_move(read(before), read(after)) == moves
        assert verdict.has_changed(read(before), read(after)) == changes
    assert not verdict.agree(before[0], moved[0], False) and verdict.agree(before[0], moved[0], True)
    assert verdict.agree({**before[0], "ttl": None}, {**before[0], "_meta": {}}, False)


def test_a_list_of_one_page_is_always_told_so() -> None:
    base: dict[str, Any] = {"tasks": {}, "lists": True, "filters": None, "first": {}, "later": {"asked": 1}}
    for count in (1, 9, 50, 70, 100):
        facts = {**base, "by_hand": read(made(count % 60), 200).fact()}
        for extra in ({}, {"may_be_cut": count in verdict.CUTS}):
            assert "one page" in verdict.verdict({**facts, **extra})[1]
        assert "own list leaves out" in verdict.verdict({**facts, "created": {"got": True, "listed": False}})[1]
