"""What the documents and the reference model say of each criterion is what is declared (query/criteria.py)."""

import json
import re
from pathlib import Path
from typing import Any

from gateway.query import criteria
from gateway.query.criteria import CRITERIA
from tests.rules import plain

ROOT = Path(__file__).parents[2]
CLIENTS, RULES = (ROOT / "docs" / name for name in ("clients.md", "design.md"))


def rows(path: Path, first: str) -> list[list[str]]:
    table = path.read_text().split(f"\n| {first} |", 1)[1].split("\n\n", 1)[0].splitlines()[2:]
    return [[cell.strip() for cell in row.strip("| ").split(" | ")] for row in table]


def in_sentence(path: Path, beginning: str, end: str) -> set[str]:
    """What stands in backticks in the one sentence that begins and ends so."""
    found = re.findall(rf"{re.escape(beginning)}(.+?){re.escape(end)}", path.read_text(), re.DOTALL)
    assert len(found) == 1, f"{path.name} has {len(found)} sentences from {beginning!r} to {end!r}, each on one line"
    return set(re.findall("`(.+?)`", found[0]))


def test_the_documents_and_the_reference_model_have_the_criteria_that_are_declared() -> None:
    members = json.loads(criteria.capability(("tools/call",)))
    example, names = CLIENTS.read_text().split("```json\n", 1)[1].split("\n```", 1)[0], set(criteria.NAMES)
    cells = [criterion for criterion, *_ in rows(CLIENTS, "criterion")]
    assert {name for cell in cells for name in re.findall("`(.+?)`", cell)} == names
    assert in_sentence(RULES, "The criteria are ", ". They stand in") == names
    assert set(members) <= in_sentence(RULES, "4.2. The value has ", ": the object of")
    assert json.loads(example)["tasks"]["list"]["filter"] == members
    assert plain.EXAMPLES.keys() == CRITERIA.keys() == criteria.NAMES.keys() - {"requestTypes"}, "the plain definition"


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
        (found,) = plain.faults(FAULTS[name])
        assert found.parameter == parameter.strip("`")
        assert found.given == given.strip("`")
        assert allowed in found.allowed
