"""The dashboard and the rules of deploy/ as files that Grafana and Prometheus load; test_monitoring.py runs them."""

import itertools
import json
import re
from pathlib import Path
from typing import Any, Final

import yaml

from tests.deploy import DEPLOY, ROOT, output
from tests.test_docs import anchors
from tests.tools import tool

DASHBOARD: Final[dict[str, Any]] = json.loads((DEPLOY / "dashboard.json").read_text())
PANELS: Final[list[dict[str, Any]]] = DASHBOARD["panels"]
RULES: Final[list[dict[str, Any]]] = [
    rule
    for group in yaml.safe_load((DEPLOY / "prometheus-rules.yaml").read_text())["groups"]
    for rule in group["rules"]
]
COLUMNS: Final = 24


def promtool(*arguments: str | Path) -> None:
    output(tool("promtool", "prometheus"), *arguments)


def test_the_rules_are_valid() -> None:
    promtool("check", "rules", DEPLOY / "prometheus-rules.yaml")


def test_each_alert_fires_when_it_should_and_only_then() -> None:
    file = ROOT / "tests/deploy/rules_test.yaml"
    promtool("test", "rules", file)
    assert [rule["alert"] for rule in RULES if rule["alert"] not in file.read_text()] == []


def test_each_alert_leads_to_a_section_of_the_handbook() -> None:
    known, listed = anchors(ROOT / "docs/troubleshooting.md"), (ROOT / "docs/metrics.md").read_text()
    for rule in RULES:
        assert f"`{rule['alert']}`" in listed
        assert rule["labels"]["severity"] in ("critical", "warning")
        assert set(rule["annotations"]) == {"summary", "description", "runbook"}
        assert rule["annotations"]["runbook"].removeprefix("#") in known, rule["alert"]


def test_the_prometheus_of_compose_reads_the_gateway_and_the_rules() -> None:
    promtool("check", "config", "--syntax-only", DEPLOY / "prometheus.yaml")
    config = yaml.safe_load((DEPLOY / "prometheus.yaml").read_text())
    assert [job["job_name"] for job in config["scrape_configs"]] == ["taskgate"], "TaskgateDown asks for this job"


def test_panels_have_names_of_their_own_and_do_not_overlap() -> None:
    titles = [panel["title"] for panel in PANELS]
    assert len(set(titles)) == len(titles)
    assert len({panel["id"] for panel in PANELS}) == len(PANELS)
    places = [panel["gridPos"] for panel in PANELS]
    for one, other in itertools.combinations(places, 2):
        beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        below = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert beside or below, (one, other)
    assert all(place["x"] + place["w"] <= COLUMNS for place in places)


def test_every_panel_asks_the_chosen_source_for_the_chosen_instances() -> None:
    variables = {variable["name"] for variable in DASHBOARD["templating"]["list"]}
    source = {"type": "prometheus", "uid": "${datasource}"}
    for panel in PANELS:
        if panel["type"] == "row":
            continue
        assert panel["datasource"] == source
        for target in panel["targets"]:
            assert target["datasource"] == source
            used = set(re.findall(r"\$(\w+)", target["expr"]))
            assert used - variables <= {"__rate_interval", "__range"}, target
            selectors = re.findall(r"\{([^}]*)\}", target["expr"])
            assert selectors and all('instance=~"$instance"' in selector for selector in selectors), target
