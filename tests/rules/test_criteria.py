"""The criteria of a `tasks/list`: their places, their meaning, and the errors about wrong ones (DESIGN 5.1 to 5.4)."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.mcp import task
from gateway.query import criteria
from gateway.query.criteria import BadQuery, Fault, Query
from tests.rules import documents, plain
from tests.rules.plain import EARLY, EXAMPLES, LATE, LISTS, faults


def read(params: object) -> Query | None:
    return criteria.read(criteria.params(json.dumps(params).encode()))


def asked(params: object) -> Query:
    found = read(params)
    assert found is not None
    return found


def fault(params: object) -> Fault:
    (only,) = faults(params)
    return only


NAMES = {**EXAMPLES, "requestTypes": EXAMPLES["methods"]}  # that of an earlier draft
each = pytest.mark.parametrize("name", NAMES)


def query_of(name: str) -> Query:
    return Query(**{name.replace("requestTypes", "methods"): NAMES[name].read})


@each
def test_a_criterion_stands_in_the_params_or_in_their_filter(name: str) -> None:
    value, expected = NAMES[name].given, query_of(name)
    assert read({name: value}) == expected
    assert read({"filter": {name: value}}) == expected
    assert read({"filter": {name: value}, "unknown": [], "_meta": {}, "cursor": "x"}) == expected
    assert read({name: value, "filter": {name: value}}) == expected


@each
def test_a_criterion_given_twice_with_different_values_is_an_error(name: str) -> None:
    value, _, other, *_ = NAMES[name]
    for first, second in ((value, other), (other, value)):
        found = fault({name: first, "filter": {name: second}})
        assert found.parameter.split(".")[-1] == name
        assert json.loads(found.given) in (first, second)


def test_an_alias_is_the_same_criterion() -> None:
    one, other = {"methods": ["tools/call"]}, {"requestTypes": ["prompts/get"]}
    for params in ({**one, **other}, {**one, "filter": other}, {**other, "filter": one}, {"filter": {**one, **other}}):
        assert fault(params).parameter.split(".")[-1] in ("methods", "requestTypes")
        assert read(json.loads(json.dumps(params).replace("prompts/get", "tools/call"))) == Query(
            methods=frozenset({"tools/call"})
        )


NOTHING: dict[str, Any] = {name: [] for name in (*LISTS, "requestTypes")}
FAILED = Query(status=frozenset({"failed"}))
EARLIEST = query_of("createdAfter")
NO_CRITERION: list[Any] = [{}, {"cursor": "x"}, {"filter": {}}, {"filter": None}]
NO_CRITERION += [{"status": [], "filter": {"order": None}}]
NO_CRITERION += [{"unknown": 1, "Status": ["working"], "state": ["working"], "task_ids": ["a"], "limit": 5}]
NO_CRITERION += [given for no in (NOTHING, dict.fromkeys(NAMES)) for given in (no, {"filter": no})]
# Params, as they are written, and the query that they are.
READ: list[tuple[Any, Query | None]] = [
    *((params, None) for params in NO_CRITERION),
    ({"status": [], "filter": {"status": ["failed"]}}, FAILED),
    ({"status": ["failed"], "filter": {"status": None}}, FAILED),
    ({"methods": None, "requestTypes": ["tools/call"]}, Query(methods=frozenset({"tools/call"}))),
    ({"orderBy": "lastUpdatedAt"}, Query()),
    ({"order": "desc"}, Query()),
    (rb'{"st\u0061tus":["working"],"status" : [ "f\u0061iled" ] , "filter":{"order":"asc"}, "filter":{}}', FAILED),
    (rb'{"taskIds" : "\u0061 b"}', Query(taskIds=frozenset({"a b"}))),
    *(
        ({"createdAfter": text}, EARLIEST)
        for text in ("2025-11-25T11:30:00+01:00", "2025-11-25T10:30:00.000Z", "2025-11-25t10:30:00z")
    ),
    # Servers that filter without saying so are asked by `{"status": "working"}`; it once was an error.
    ({"status": "failed"}, FAILED),
    ({"filter": {"status": "failed"}}, FAILED),
    ({"status": "failed", "filter": {"status": ["failed"]}}, FAILED),
    *(
        ({"methods": [method]}, Query(methods=frozenset({method})))
        for method in ("ping", "sampling/createMessage", "notifications/tasks/status", "x-y.z/do_it")
    ),
]


@pytest.mark.parametrize(("params", "expected"), READ, ids=lambda value: str(value)[:40])
def test_how_params_are_read(params: Any, expected: Query | None) -> None:
    found = criteria.read(criteria.params(params if isinstance(params, bytes) else json.dumps(params).encode()))
    assert found == expected
    assert found is None or "order" in str(params) or (found.by, found.descending) == ("lastUpdatedAt", True)


WRONG = [(name, value) for name, one in NAMES.items() for value in one.wrong]
IN_LISTS = [(name, item) for name, one in NAMES.items() for item in one.wrong_items]


@pytest.mark.parametrize(("name", "value"), WRONG)
def test_a_wrong_value_is_named_with_what_is_allowed(name: str, value: Any) -> None:
    for params in ({name: value}, {"filter": {name: value}}):
        found = fault(params)
        assert found.parameter.split(".")[-1] == name
        assert json.loads(found.given) == value
        assert all(allowed in found.allowed for allowed in NAMES[name].allowed)


@pytest.mark.parametrize(("name", "item"), IN_LISTS)
def test_a_wrong_value_in_a_list_is_named_with_what_is_allowed(name: str, item: Any) -> None:
    right = {"status": "failed", "taskIds": "a"}.get(name, "tools/call")
    for items in ([item], [right, item], [item, right]):
        found = fault({name: items})
        assert found.parameter.split(".")[-1] == name
        assert json.loads(found.given) in (item, items)
        assert all(allowed in found.allowed for allowed in NAMES[name].allowed if allowed != "array")


@pytest.mark.parametrize("value", [[], [{"status": ["failed"]}], "status", "", 0, 1, True, False])
def test_a_filter_that_is_no_object(value: Any) -> None:
    for params in ({"filter": value}, {"filter": value, "status": ["failed"]}):
        found = fault(params)
        assert found.parameter == "filter"
        assert json.loads(found.given) == value
        assert "object" in found.allowed


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        *(("staus", "status"), ("Status", "status"), ("taskId", "taskIds"), ("task_ids", "taskIds")),
        ("method", "methods"),
        *(("createdafter", "createdAfter"), ("updatedBefore", "lastUpdatedBefore"), ("requestType", "requestTypes")),
        *(("sortBy", "orderBy"), ("unknown", None), ("", None), ("x" * 100_000, None)),
    ],
    ids=lambda text: str(text)[:20],
)
def test_a_member_of_the_filter_that_is_no_criterion_is_named_with_the_nearest(name: str, nearest: str | None) -> None:
    """A misspelt criterion once brought an unfiltered list without a word."""
    for more in ({}, {"status": ["failed"]}):
        found = fault({"filter": {name: ["working"], **more}})
        assert found.parameter == f"filter.{name}" or (len(name) > 64 and len(found.parameter) < 100)
        assert json.loads(found.given) == ["working"]
        suggestion = f"did you mean `{nearest}`?" if nearest else "one of `methods`, `requestTypes`, `taskIds`"
        assert suggestion in found.allowed


def test_every_member_of_the_filter_that_is_no_criterion_is_named() -> None:
    found = faults({"filter": {"staus": 1, "order": "up", "limit": None}, "status": 1})
    assert sorted(f.parameter for f in found) == ["filter.limit", "filter.order", "filter.staus", "status"]
    assert 10 <= len(faults({"filter": {f"x{n}": 1 for n in range(100)}})) <= 11
    assert [json.loads(f.given) for f in faults({"status": ["done", "working", "open"]})] == ["done", "open"]


@pytest.mark.parametrize(
    ("params", "names"),
    [
        ({"status": ["failed"]}, []),
        ({"status": ["failed"], "filter": {"order": "asc"}, "cursor": "x", "_meta": {"a": {"b": 1}}}, []),
        ({"requestTypes": ["tools/call"], "staus": ["failed"], "limit": 5, "_meta": {}}, ["staus", "limit"]),
        ({"status": ["failed"], "Status": {"a": {"b": ["c:d"]}}, "": 1}, ["Status", ""]),
        ({"x" * 1000: 1, "order": "asc"}, ["x" * 32 + "..." + "x" * 32]),
        ({f"x{n}": n for n in range(11)}, [*(f"x{n}" for n in range(10)), "..."]),
        ({"x": {str(n): 1 for n in range(10_000)}, "y": 1}, ["..."]),
        ({"taskIds": ["urn:a:b"] * 2_000, "order:": ":", "x": 1}, ["order:", "x"]),
        ([], []),
    ],
    ids=lambda value: str(value)[:30],
)
def test_parameters_that_are_not_read_are_known_by_name(params: Any, names: list[str]) -> None:
    raw = json.dumps(params).encode()
    assert criteria.ignored(raw, criteria.params(raw)) == names


RANGES = [("createdAfter", "createdBefore"), ("lastUpdatedAfter", "lastUpdatedBefore")]


@pytest.mark.parametrize(("low", "high"), RANGES)
def test_a_range_that_ends_before_it_begins(low: str, high: str) -> None:
    for params in (
        {low: LATE, high: EARLY},
        {"filter": {low: LATE, high: EARLY}},
        {low: LATE, "filter": {high: EARLY}},
        {low: "2025-11-25T10:30:00.000000001Z", high: EARLY},
        {low: "2025-11-25T10:30:00-00:01", high: EARLY},
    ):
        found = fault(params)
        assert low in found.parameter
        assert low in found.allowed or high in found.allowed
    assert read({low: EARLY, high: EARLY}) is not None
    assert read({low: "2025-11-25T10:30:00.0000000009Z", high: EARLY}) is not None  # further digits are cut
    assert read({low: EARLY, high: "2025-11-25T09:30:00-01:00"}) is not None
    assert LATE in fault({low: LATE, high: EARLY}).given  # as JSON
    other_low = {"createdAfter": "lastUpdatedAfter", "lastUpdatedAfter": "createdAfter"}[low]
    assert read({other_low: LATE, high: EARLY}) is not None


def test_what_was_given_is_shown_in_part_if_it_is_long() -> None:
    for value in ("x y" * 33_333, [["x y" * 100_000]], {"x": "y" * 100_000}, "\u00e9" * 100_000):
        for name in NAMES.keys() - ({"taskIds"} if isinstance(value, str) else set()):  # any string is an id
            with pytest.raises(BadQuery) as caught:
                read({name: value})
            assert len(str(caught.value)) < 1000
    assert len(faults({"status": ["done"] * 100_000})) < 1000


some = documents.values | st.lists(st.sampled_from(["failed", "tools/call", EARLY, ""]), max_size=2)
some |= st.sampled_from([EARLY, LATE, "asc", "createdAt"])
inner = st.dictionaries(st.sampled_from(list(NAMES)), documents.values, max_size=3).map(documents.of)
outer = st.dictionaries(st.sampled_from([*NAMES, "filter", "cursor"]), some | inner, max_size=4).map(documents.of)


@given(documents.documents(outer))
def test_whatever_is_given_is_a_query_or_none_or_told_to_be_wrong(params: bytes) -> None:
    try:
        found = criteria.read(criteria.params(params))
    except BadQuery as bad:
        assert bad.faults
    else:
        assert found is None or isinstance(found, Query)


@given(plain.reports, plain.queries, st.sampled_from(plain.METHODS))
def test_a_task_matches_by_the_plain_definition(
    candidate: task.Task, asked_for: Query, default_method: str | None
) -> None:
    """By any query, and by one whose only criterion is a method, or a bound at the very instant of the task."""
    queries = [asked_for, *(Query(methods=frozenset({method})) for method in plain.METHODS if method)]
    for at, names in zip((candidate.created, candidate.updated), RANGES, strict=True):
        queries += [Query(**{name: at + more}) for name in names for more in (-1, 0, 1)]
    for query in queries:
        assert query.matches(candidate, default_method) is bool(plain.listed([candidate], query, default_method))
