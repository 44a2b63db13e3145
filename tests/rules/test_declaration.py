"""One declaration for each criterion: what is made of it, and what the documents say of it.

Two are declared here, and found everywhere: a text that methods begin with, and statuses that are left out.
"""

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway.cli import tasks_command
from gateway.mcp import capabilities, task
from gateway.mcp.task import Task
from gateway.query import criteria, cursor
from gateway.query.criteria import CRITERIA, CRITERIA_BYTES_MAX, LIST_ITEMS_MAX, BadQuery, Criterion, Fault, Query
from gateway.query.cursor import Position
from gateway.refresh import answer
from gateway.refresh.planning import may_match_all_live
from gateway.tasks.index import Index, QueryPage
from tests.rules import new_criterion, plain

ROOT = Path(__file__).parents[2]
CLIENTS, TASKS, RULES, CONFIGURATION = (
    ROOT / "docs" / name for name in ("clients.md", "choosing.md", "design.md", "configuration.md")
)


def rows(path: Path, first: str) -> list[list[str]]:
    table = path.read_text().split(f"\n| {first} |", 1)[1].split("\n\n", 1)[0].splitlines()[2:]
    return [[cell.strip() for cell in row.strip("| ").split(" | ")] for row in table]


def in_table(path: Path) -> set[str]:
    return {name for criterion, *_ in rows(path, "criterion") for name in re.findall("`(.+?)`", criterion)}


def in_sentence(path: Path, beginning: str, end: str) -> set[str]:
    """What stands in backticks in the one sentence that begins and ends so."""
    (sentence,) = re.findall(rf"{re.escape(beginning)}(.+?){re.escape(end)}", path.read_text(), re.DOTALL)
    return set(re.findall("`(.+?)`", sentence))


def in_example() -> dict[str, Any]:
    """The capability in the example of docs/clients.md."""
    example = CLIENTS.read_text().split("```json\n", 1)[1].split("\n```", 1)[0]
    found: dict[str, Any] = json.loads(example)["tasks"]["list"]["filter"]
    return found


def flag(name: str) -> str:
    return "--" + re.sub("([A-Z])", r"-\1", name).lower()


def lacking() -> dict[str, set[str]]:
    """What the documents and the reference model lack, and what they have that is not declared."""
    members = json.loads(criteria.capability(("tools/call",)))
    example, names = in_example(), set(criteria.names())
    found = {
        "the table in docs/clients.md": names ^ in_table(CLIENTS),
        "rule 5.1": names ^ in_sentence(RULES, "The criteria are ", ". They stand in"),
        "rule 4.2": set(members) - in_sentence(RULES, "4.2. The value has ", ": the object of"),
        "the example in docs/clients.md": {
            name for name in members | example if example.get(name) != members.get(name)
        },
        "the flags in docs/choosing.md": set(map(flag, CRITERIA)) ^ in_sentence(TASKS, "has a flag: ", ". Lists have"),
        "the plain definition, tests/rules/plain.py": CRITERIA.keys() ^ plain.values.keys(),
    }
    return {where: names for where, names in found.items() if names}


def faults(params: object) -> list[Fault]:
    with pytest.raises(BadQuery) as caught:
        answer.read(criteria.params(json.dumps(params).encode()))
    return caught.value.faults


def query(**params: Any) -> Query:
    found = criteria.read(criteria.params(json.dumps(params).encode()))
    assert found is not None
    return found


# ---- the documents ----


def test_the_documents_and_the_reference_model_have_the_criteria_that_are_declared() -> None:
    assert lacking() == {}


def test_the_table_of_criteria_has_the_values_and_the_defaults() -> None:
    said = {name: cells[1] for cells in rows(CLIENTS, "criterion") for name in re.findall("`(.+?)`", cells[0])}
    for name, criterion in criteria.names().items():
        for choice in criterion.kind.choices:
            assert f"`{choice}`{' (default)' if choice == criterion.default else ''}" in said[name]
    assert re.findall("`(.+?)`", said["status"]) == list(task.STATUSES)


@pytest.mark.parametrize("path", [CLIENTS, CONFIGURATION], ids=lambda path: path.name)
def test_the_documents_have_the_limits(path: Path) -> None:
    text = path.read_text()
    assert f"{CRITERIA_BYTES_MAX // 1024} KiB" in text
    assert f"{LIST_ITEMS_MAX:,}" in text


FAULTS: dict[str, dict[str, Any]] = {
    "an unknown status": {"status": ["workin"]},
    "bounds in the wrong order": {"createdAfter": "2026-11-21T00:00:00Z", "createdBefore": "2026-11-20T00:00:00Z"},
    "given twice, differently": {"status": ["working"], "filter": {"status": ["failed"]}},
    "an unknown name in `filter`": {"filter": {"staus": ["failed"]}},
    "a cursor that spells nothing": {"cursor": "taskgate:status=failed"},
    "a cursor of another list": {"status": ["failed"], "cursor": "abc"},
}


def test_the_table_of_faults_has_what_is_said() -> None:
    table = {cells[0]: cells[1:] for cells in rows(CLIENTS, "fault")}
    assert table.keys() == FAULTS.keys()
    for name, (parameter, given, allowed) in table.items():
        (found,) = faults(FAULTS[name])
        assert found.parameter == parameter.strip("`")
        assert found.given == given.strip("`")
        assert allowed in found.allowed


# ---- a new one ----


@pytest.fixture
def declared() -> Iterator[None]:
    with new_criterion.declared():
        yield


PREFIX, NOT = (one.name for one in new_criterion.ALL)
MANY = plain.many(300, seed=10)


def test_it_is_no_criterion_unless_it_is_declared() -> None:
    assert criteria.read(criteria.params(b'{"%b":"tools/"}' % PREFIX.encode())) is None


@pytest.mark.usefixtures("declared")
def test_it_is_read_wherever_criteria_stand() -> None:
    assert query(testOnlyMethodPrefix="tools/") == Query(testOnlyMethodPrefix="tools/")
    assert query(filter={PREFIX: "tools/", "status": ["failed"]}) == Query(
        testOnlyMethodPrefix="tools/", status=frozenset({"failed"})
    )
    assert criteria.read(criteria.params(b'{"%b":""}' % PREFIX.encode())) is None
    assert query(testOnlyStatusNot=["failed"]) == Query(testOnlyStatusNot=frozenset({"failed"}))


@pytest.mark.usefixtures("declared")
def test_its_faults_are_told() -> None:
    assert faults({PREFIX: 5}) == [Fault(PREFIX, "5", "a text that the method begins with")]
    assert faults({"filter": {NOT: ["done"]}}) == [Fault("filter.testOnlyStatusNot", '"done"', "an array of statuses")]
    assert faults({PREFIX: "a", "filter": {PREFIX: "b"}}) == [
        Fault(f"filter.{PREFIX}", '"b"', f"the same value as the other `{PREFIX}`")
    ]


def expected(asked: Query) -> list[Task]:
    prefix = asked.values.get("testOnlyMethodPrefix", "")
    rest = [one for one in MANY if one.method is None or one.method.startswith(prefix)]
    rest = [one for one in rest if one.status not in asked.values.get("testOnlyStatusNot", ())]
    return plain.listed(rest, _without(asked, new_criterion.ALL), None)


def _without(asked: Query, some: Iterable[Criterion]) -> Query:
    names = {one.name for one in some}
    return Query(**{name: value for name, value in asked.values.items() if name not in names})


PARAMS: list[dict[str, Any]] = [
    {PREFIX: "tools/"},
    {PREFIX: "tools/", "status": ["completed", "failed"], "orderBy": "createdAt", "order": "asc"},
    {PREFIX: "p", "createdAfter": "2025-11-25T00:01:00Z", "methods": ["prompts/get", "tools/call"]},
    {PREFIX: "tools/", "taskIds": [one.id for one in MANY[::2]]},
    {NOT: ["completed"]},
    {NOT: ["completed"], "status": ["completed", "failed", "working"], "lastUpdatedAfter": "2025-11-25T00:01:00Z"},
    {NOT: ["completed"], PREFIX: "tools/"},
]


@pytest.mark.usefixtures("declared")
@pytest.mark.parametrize("params", PARAMS, ids=str)
def test_it_is_matched_selected_and_carried_in_cursors(params: dict[str, Any]) -> None:
    asked, index = query(**params), Index()
    for one in MANY:
        index.put(one)
    want = expected(asked)
    assert 0 < len(want) < len(MANY)
    assert [one for one in MANY if asked.matches(one)] == [one for one in MANY if one in want]

    def select(position: Position) -> QueryPage:
        assert position.query == asked
        return index.select(position, 7)

    pages = plain.followed(select, asked)
    assert {page.total for page in pages} == {len(want)}
    assert [one for page in pages for one in page.tasks] == want


@pytest.mark.usefixtures("declared")
@pytest.mark.parametrize("params", PARAMS, ids=str)
def test_a_live_task_that_may_come_to_match_is_asked_for(params: dict[str, Any]) -> None:
    """Any status may be a live task's next one. Its method stays."""
    asked, index = query(**params), Index()
    for one in MANY:
        index.put(one)
    kept = _without(asked, new_criterion.ALL)
    fits = {one.id for one in MANY if one.method is None or one.method.startswith(params.get(PREFIX, ""))}
    assert {t.id for t in index.live(asked)} == fits.intersection(t.id for t in index.live(kept))
    assert may_match_all_live(asked) is (may_match_all_live(kept) and PREFIX not in params)


@pytest.mark.usefixtures("declared")
def test_a_forged_value_of_it_in_a_cursor_is_refused() -> None:
    asked = Query(testOnlyStatusNot=frozenset({"failed"}), testOnlyMethodPrefix="x")
    other = Position(asked, (MANY[0].updated, MANY[0].id))
    text = cursor.encode(other)
    assert cursor.decode(text) == other
    with new_criterion.withdrawn(), pytest.raises(BadQuery):  # a build without the criterion cannot answer it
        cursor.decode(text)


@pytest.mark.usefixtures("declared")
def test_it_is_advertised() -> None:
    data = b'{"jsonrpc":"2.0","id":1,"result":{"capabilities":{"tasks":{"list":{},"requests":{}}}}}'
    message = plain.parsed(data)
    edited, _ = capabilities.advertise(data, message, criteria.capability)
    advertised = json.loads(edited)["result"]["capabilities"]["tasks"]["list"]["filter"]
    assert advertised["testOnlyStatusNot"] is True
    assert PREFIX in advertised


@pytest.mark.usefixtures("declared")
def test_it_is_a_flag_of_taskgate_tasks(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, said in (
        (["--help"], "--test-only-method-prefix VALUE"),
        (
            ["--test-only-status-not", "done", "http://127.0.0.1:1/mcp"],
            "--test-only-status-not: given 'done', allowed is an array of statuses",
        ),
    ):
        with pytest.raises(SystemExit):
            tasks_command.run(arguments)
        assert said in "".join(capsys.readouterr())


@pytest.mark.usefixtures("declared")
def test_each_has_a_place_of_its_own_in_the_capability() -> None:
    paths = [criterion.capability for criterion in CRITERIA.values()]
    assert len(set(paths)) == len(paths)
