"""The tasks on the page for people (DESIGN 8.10), in a real browser; the test brings about every figure."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import uuid4

import pytest

from gateway.mcp.client_message import TOOL_CHARS_MAX
from tests.launch import Gateway, Gateways
from tests.relay.messages import call, filtered, task
from tests.relay.test_page import EVERYWHERE, HOSTILE, NOTHING, SIZES, ask, browser, contrast_min, expect, opened
from tests.relay.test_told import Workshop
from tests.upstream import in_a_thread

__all__ = ["browser"]  # the fixture

TOOK_S: Final = 10.0  # of each task that ends
TWO_HOURS_S: Final = 7200.0
LONG: Final = HOSTILE.ljust(TOOL_CHARS_MAX, "x")


class Shop(Workshop):
    """A workshop behind a gateway."""

    gateway: Gateway

    def make(self, tool: str, status: str = "working", times: int = 1, age_s: float = 0.0, path: str = "/mcp") -> None:
        """Call a tool; a client then sees its task in that status."""
        for _ in range(times):
            created = datetime.now(UTC) - timedelta(seconds=age_s)
            made = task(uuid4().hex, created=created.isoformat())
            ask(self.gateway, call("tools/call", name=tool, task={}, meant=made), path)
            self.become(status, path)

    def become(self, status: str, path: str = "/mcp") -> None:
        """The last task has that status, and a client sees it."""
        made = list(self.tasks.values())[-1]
        updated = datetime.fromisoformat(made["createdAt"]) + timedelta(seconds=TOOK_S)
        made |= {"status": status, "lastUpdatedAt": updated.isoformat()}
        ask(self.gateway, call("tasks/get", taskId=made["taskId"]), path)

    def forget(self) -> None:
        """The last task has gone, and its client hears that."""
        ask(self.gateway, call("tasks/get", taskId=self.tasks.popitem()[0]), "/mcp")


@contextmanager
def workshop(gateways: Gateways, **changed: Any) -> Iterator[Shop]:
    """A gateway in front of a workshop, with two names."""
    made = Shop()
    with in_a_thread(made.answered) as port:
        upstreams = [
            {"name": name, "url": f"http://127.0.0.1:{port}/mcp", **match}
            for name, match in (("studio", {}), ("office", {"match": {"prefix": "/office"}}))
        ]
        with gateways.process(port, upstreams=upstreams, **changed) as made.gateway:
            yield made


def cells(tab: Any, tool: str) -> list[str]:
    """What a row says, cell by cell, once it is there."""
    row = tab.locator("#tasks tr").filter(has=tab.get_by_text(tool, exact=True))
    expect(row).to_have_count(1)
    texts: list[str] = row.locator("th, td").all_inner_texts()
    return [text.replace("\u00a0", " ") for text in texts]


def test_what_runs_for_how_long_of_which_tool_and_how_many_failed(browser: Any, gateways: Gateways) -> None:
    with workshop(gateways) as shop:
        shop.make("render", times=2)
        shop.make("render", age_s=TWO_HOURS_S + 300)
        shop.make("render", "completed", times=3)
        shop.make("render", "failed")
        shop.make("approve", "input_required", age_s=TWO_HOURS_S)
        shop.make("approve", "input_required", times=2)
        shop.make("invoice", "failed", times=6, path="/office/mcp")
        shop.make("invoice", "cancelled", times=3, path="/office/mcp")
        with opened(browser, shop.gateway) as tab:
            expect(tab.locator("#verdict")).to_have_text(
                "Tasks of render at studio do not end: 3 work, the oldest for 2 h. "
                "6 of 9 tasks of invoice failed in the last 5 minutes. 3 tasks wait for input, the oldest for 2 h"
            )
            expect(tab.locator("#verdict")).to_have_class("warn")
            assert re.fullmatch(r"3\noldest 2 h [5-9] min", tab.locator("#working").inner_text())
            assert re.fullmatch(r"3\noldest 2 h( \d min)?", tab.locator("#waiting").inner_text())
            assert tab.locator("#failed").inner_text() == "7 of 13\n7 of 13 since the start"
            assert tab.locator("#created").inner_text() == "19\n19 since the start"
            tools = tab.locator("#tasks th span").all_inner_texts()
            assert tools == ["render", "invoice", "approve"], "what is wrong is first, then what lives"
            render, invoice, approve = (cells(tab, tool) for tool in tools)
            assert render[0] == "render\nstudio" and invoice[0] == "invoice\noffice"
            assert re.fullmatch(r"3\noldest 2 h [5-9] min", render[1]) and render[2] == "0"
            assert render[3] == "1 of 4\n1 of 4" and render[5] == "10.0 s / 10.0 s"
            assert render[6] == render[7] == render[8] == "7 created\n1 failed, 3 completed"
            assert invoice[1:4] == ["0", "0", "6 of 9\n6 of 9"] and invoice[8] == "9 created\n6 failed, 3 cancelled"
            assert approve[1] == "0" and approve[2].startswith("3\noldest 2 h") and approve[3] == approve[5] == NOTHING
            assert tab.locator("#tasks td.bad").all_inner_texts() == ["6 of 9\n6 of 9"], "red is what is wrong"
            assert tab.locator("#tasks td.warn span").all_inner_texts() == ["3"], "what does not end"
            states = tab.locator("#upstreams .state > span")
            expect(states).to_have_text(["up, tasks do not end", "up, tasks fail"])
            expect(tab.locator("#failed")).to_have_class("number big bad")
            assert "<svg" in tab.locator("#tasks td.curve").first.inner_html()
            ways = tab.locator("main > section").evaluate_all(
                "all => all.map(one => one.getAttribute('aria-labelledby'))"
            )
            assert ways[:3] == [f"{part}-title" for part in ("upstreams", "reasons", "tasks")], "something is wrong"


def test_the_headline_tells_of_one_that_waits_and_of_what_fails(browser: Any, gateways: Gateways) -> None:
    with workshop(gateways) as shop, opened(browser, shop.gateway) as tab:
        verdict = tab.locator("#verdict")
        shop.make("approve", "input_required", age_s=240.0)
        expect(verdict).to_have_text(
            re.compile(r"Nothing is wrong: 1 up, 1 not asked yet\. 1 task waits for input, for \d+ min")
        )
        expect(tab).to_have_title(re.compile("1 task waits for input"))
        shop.become("completed")
        expect(verdict).to_have_text("Nothing is wrong: 1 up, 1 not asked yet")
        shop.make("shaky", "failed", times=4)
        shop.make("sound", "completed", times=5)
        expect(tab.locator("#failed")).to_contain_text("4 of 10")
        expect(verdict).to_have_text("Nothing is wrong: 1 up, 1 not asked yet")  # four are too few
        expect(tab.locator("#failed")).to_have_class("number big")
        shop.make("shaky", "failed")
        expect(verdict).to_have_text("5 of 5 tasks of shaky failed in the last 5 minutes")
        shop.make("shaky", "completed", times=5)
        expect(verdict).to_have_text("Nothing is wrong: 1 up, 1 not asked yet")
        for tool in ("shaky", "another"):
            shop.make(tool, "failed", times=6)
        expect(verdict).to_have_text(
            "11 of 16 tasks of shaky failed in the last 5 minutes. 6 of 6 tasks of another failed in the last 5 minutes"
        )


def test_what_nobody_asks_for_is_not_said_to_work(browser: Any, gateways: Gateways) -> None:
    """It was "Working 18, oldest 34 min", of tasks that had long ended: their client had left."""
    with workshop(gateways) as shop:
        shop.make("render")
        with opened(browser, shop.gateway) as tab:
            expect(tab.locator("#working span")).to_have_text("1")
            tab.locator("#pause").click()
            unheard = "{...t, live: {unheard: {count: 18, since: last.now - 2040}}}"
            tasks = f"last.upstreams.map((u) => ({{...u, tasks: u.tasks.map((t) => ({unheard}))}}))"
            tab.evaluate(f"show({{...last, upstreams: {tasks}}})")
            expect(tab.locator("#working span")).to_have_text("0")
            said = re.compile(r"^18 not heard of since \d\d:\d\d:\d\d$")
            expect(tab.locator("#working small")).to_have_text(said)
            assert "18 not heard of since" in cells(tab, "render")[1]


def test_without_tasks_it_says_where_they_come_from_and_when_off_which_key_turns_them_on(
    browser: Any, gateways: Gateways
) -> None:
    with workshop(gateways, metrics={"tasks": False}) as shop, opened(browser, shop.gateway) as tab:
        assert shop.gateway.file is not None
        settings = json.loads(shop.gateway.file.read_text())
        shop.make("render")
        expect(tab.locator("#tasks-off")).to_contain_text("metrics.tasks is false")
        expect(tab.locator("#tasks-shown")).to_be_hidden()
        shop.gateway.renew({**settings, "metrics": {"tasks": True}})
        expect(tab.locator("#no-tasks")).to_contain_text("A task is seen when a client makes it")
        expect(tab.locator("#tasks-off")).to_be_hidden()
        expect(tab.locator("#working span")).to_have_text("0")
        ask(shop.gateway, filtered())  # what is seen in a list alone has no tool
        expect(tab.locator("#tasks tr")).to_contain_text("(not known)")
        expect(tab.locator("#no-tasks")).to_be_hidden()
        shop.gateway.renew({**settings, "metrics": {"tasks": False}})
        expect(tab.locator("#tasks-off")).to_be_visible()


@pytest.mark.parametrize(("size", "scheme"), [*EVERYWHERE, ("phone", "light")])
def test_a_hostile_name_is_text_and_breaks_nothing(browser: Any, gateways: Gateways, size: str, scheme: str) -> None:
    with workshop(gateways) as shop:
        shop.make(LONG, "failed", times=5)
        shop.make(LONG, age_s=400_000.0)
        shop.make("\u202eder\u2028\0", "input_required", age_s=400_000.0)
        for number in range(20):  # beyond the first 16 they are one
            shop.make(f"tool-{number}")
        with opened(browser, shop.gateway, size, scheme) as tab:
            expect(tab.locator("#tasks tr:visible")).to_have_count(10)
            tab.get_by_role("button", name="Show all 17").click()
            expect(tab.locator("#tasks tr:visible")).to_have_count(17)
            name = tab.locator("#tasks th").first
            expect(name.locator("span")).to_have_text(LONG)
            assert name.get_attribute("title") == LONG, "where it is cut, the whole is there"
            assert tab.locator("#tasks img").count() == 0
            assert f"5 of 5 tasks of {LONG[:20]}...{LONG[-20:]} failed" in tab.locator("#verdict").inner_text()
            expect(tab.locator("#tasks tr")).to_have_count(17)
            assert cells(tab, "other")[1].startswith("6")
            assert tab.evaluate("document.documentElement.scrollWidth") <= SIZES[size][0]
            region = tab.locator("#tasks-shown .scroll")
            assert region.evaluate("one => one.scrollWidth <= one.clientWidth"), "nothing is out of sight"
            cut = "all => all.filter(one => one.scrollWidth > one.clientWidth + 1).length"
            assert tab.locator("#tasks > tr > *").evaluate_all(cut) == 0, "nothing lies over its neighbour"
            assert name.evaluate("one => one.offsetHeight") < 120, "a row stays a row"
            figures = ("#failed span", "#working span", "#working small", "#tasks-now dt", "#tasks .words small")
            assert contrast_min(tab, ".facts div", figures) >= 4.5, "WCAG 2.2, 1.4.3"
