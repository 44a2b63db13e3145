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


@given(ANYTHING, ANYTHING, JSON)
def test_any_list_has_facts_and_each_fact_has_words(
    one: list[dict[str, Any]], two: list[dict[str, Any]], can: Any
) -> None:
    first, second = read(one), read(two)
    known: dict[str, Any] = {
        "tasks": can,
        "by_hand": first.fact(),
        "statuses": second.statuses,
        "change": first.states != second.states,
        "others_see": verdict.seen_by_others(first, two),
    }
    for name, value in known.items():
        assert verdict.WORDS[name][1](value) or value is None  # what is not known has no line
    assert verdict.verdict({**known, "lists": True, "filters": None})[1].endswith(".")
