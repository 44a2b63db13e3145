"""The page for people, kept open all day, in a real browser (DESIGN 8.10): what it says, and that it holds still."""

import json
import re
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pytest

from tests import certificates
from tests.launch import Gateway, Gateways
from tests.relay.messages import call, filtered
from tests.relay.test_page import NOTHING, answered, ask, browser, expect, opened
from tests.upstream import in_a_thread

__all__ = ["browser"]  # the fixture

GONE: Final = "The gateway does not answer"
HANGS_MS: Final = 5_000  # a gateway that hangs is seen by then


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with in_a_thread(answered) as one:
        yield one


def upstream(name: str, port: int) -> dict[str, object]:
    return {"name": name, "url": f"http://127.0.0.1:{port}/mcp", "match": {"prefix": f"/{name}"}}


@contextmanager
def shown(
    browser: Any, gateways: Gateways, port: int, *named: str, size: str = "wide", **changed: Any
) -> Iterator[tuple[Gateway, Any]]:
    """A gateway with these upstreams, of which those that are dead do not answer, and its page."""
    if named:
        changed["upstreams"] = [upstream(name, 1 if name.startswith("dead") else port) for name in named]
    with gateways.process(port, **changed) as one, opened(browser, one, size) as tab:
        yield one, tab


def status(gateway: Gateway) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(gateway.get("/page/status.json")[1])
    return found


def names(tab: Any) -> list[str]:
    shown: list[str] = tab.locator("#upstreams tr:visible th span").all_inner_texts()
    return shown


# ---- is anything wrong, since when, and who is hit ----


def test_the_verdict_is_first_and_failures_have_a_row_for_each_reason(
    browser: Any, gateways: Gateways, port: int
) -> None:
    with shown(browser, gateways, port, "well", "spare", "dead") as (one, tab):
        verdict, icon = tab.locator("#verdict"), tab.locator("#icon")
        expect(verdict).to_have_text("Nothing is wrong: 3 not asked yet")
        expect(tab.locator("#no-reasons")).to_be_visible()
        began = time.time()
        for name in ("well", "spare", "dead"):
            expect(tab.locator("#unasked")).to_contain_text(f"http://127.0.0.1:{one.port}/{name}/mcp ({name})")
        expect(tab.locator("#wrong li")).to_have_count(0)
        expect(tab.locator("#tasks-now")).to_be_hidden()
        assert ask(one, call("ping"), "/well/mcp") == 200
        assert ask(one, call("ping"), "/nowhere/mcp") == 404, "what a client causes is no fault"
        expect(verdict).to_have_text("Nothing is wrong: 1 up, 2 not asked yet")
        expect(icon).to_have_attribute("href", "page/icon.svg")
        assert ask(one, call("tools/call"), "/well/mcp") == 500
        expect(verdict).to_have_text("well failed 1 of 2 requests")
        expect(verdict).to_have_class("note")  # one alone is shown, and is no fault
        expect(icon).to_have_attribute("href", "page/icon.svg")
        expect(tab.locator("#unasked")).to_be_hidden()
        for _ in range(100):
            assert ask(one, call("ping"), "/well/mcp") == 200
        for _ in range(4):
            assert ask(one, call("tools/call"), "/well/mcp") == 500
        expect(verdict).to_have_text("well failed 5 of 106 requests")
        expect(verdict).to_have_class("warn")
        expect(icon).to_have_attribute("href", "page/icon-warn.svg")
        assert ask(one, call("tools/call"), "/well/mcp") == 500
        expect(verdict).to_have_text("well failed 6 of 107 requests")
        expect(icon).to_have_attribute("href", "page/icon-bad.svg")
        assert ask(one, call("ping"), "/dead/mcp") == 502
        expect(verdict).to_have_text("dead is down. well failed 6 of 107 requests")
        expect(tab.locator("#upstreams tr").nth(1)).to_contain_text("up, failing")
        expect(tab).to_have_title(f"{status(one)['verdict']['text']} · taskgate")
        expect(icon).to_have_attribute("href", "page/icon-bad.svg")
        assert names(tab) == ["dead", "well", "spare"], "what is down comes first"
        dead = tab.locator("#upstreams tr").first
        expect(dead).to_contain_text("down")
        expect(dead).to_contain_text("since ")
        expect(dead).to_contain_text("cannot be reached: Connection refused")
        expect(dead).to_contain_text("100 % / 100 %")
        assert tab.locator("main > :first-child > :first-child").get_attribute("id") == "verdict"
        wrong = tab.locator("#wrong li")
        expect(wrong).to_have_count(2)
        expect(wrong.first).to_contain_text(re.compile(r"^dead is down since \d\d:\d\d:\d\d: .*Connection refused"))
        expect(wrong.first).to_contain_text("Does the server run and answer, and is its url right?")
        expect(wrong.first.locator("small a")).to_have_text("docs/troubleshooting.md: 502 Bad Gateway")
        expect(wrong.nth(1)).to_contain_text("the upstream answered 500")
        wrong.nth(1).locator("> a").click()
        expect(tab.locator("#reasons tr").first).to_be_in_viewport()
        for target, method in (("/well/mcp", "tools/call"), ("/spare/mcp", "tools/call"), *(("/nowhere", "ping"),) * 8):
            ask(one, call(method), target)
        rows = tab.locator("#reasons tr")
        expect(rows).to_have_count(4)
        expect(rows.first).to_contain_text("7")
        text = [row.split("\t") for row in (rows.nth(n).inner_text().replace("\n", "\t") for n in (0, 1, 3))]
        assert [row[:2] for row in text] == [
            ["answers with status 500", "UpstreamStatus 500, counts as failing"],
            ["cannot be reached", "UpstreamUnreachable, counts as failing"],
            ["an address without a server", "NoUpstream, does not count as failing"],
        ]
        assert (
            text[0].count("7") == 3 and "well" in text[0] and "dead" in text[1] and "spare" in rows.nth(2).inner_text()
        )
        well = status(one)["upstreams"][0]
        assert 0 < well["p95"][0] < 10 and 0 < well["failing"][0] < 0.1 and 0 < len(well["curve"]["requests"]) <= 60
        expect(tab.locator("#upstreams tr").filter(has_text="well").locator("polyline.faults")).to_have_attribute(
            "points", re.compile(r"\d+,\d+")
        )
        assert "docs/troubleshooting.md: 404 from the gateway" in text[2]
        for reason in status(one)["reasons"]:
            assert began - 1 <= reason["since"] <= reason["last"] <= time.time() + 1
        expect(tab.locator("#no-reasons")).to_be_hidden()


def test_uptime_reload_store_guards_and_limits_are_shown(browser: Any, gateways: Gateways, port: int) -> None:
    guards = {"task_operations_per_second": 1, "task_operations_burst": 1, "task_ttl_max": "1h"}
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,  # a store that takes connections, and says nothing
        gateways.process(
            port,
            guards=guards,
            store={"url": f"redis://127.0.0.1:{silent.getsockname()[1]}"},
            limits={"connections_max": 2},
            upstreams=[upstream("up", port), {**upstream("narrow", silent.getsockname()[1]), "requests_max": 1}],
        ) as one,
        opened(browser, one) as tab,
    ):
        expect(tab.locator("#uptime")).to_contain_text("since ")
        expect(tab.locator("#guards")).to_contain_text("1 task operations/s of a client, ttl at most 60 min; 0 refused")
        expect(tab.locator("#store")).to_contain_text("fails: no answer in time")
        expect(tab.locator("#wrong")).to_contain_text(
            re.compile(r"The store fails since \d\d:\d\d:\d\d: no answer in time")
        )
        assert tab.locator("#drain, #certificates").evaluate_all("all => all.every(one => one.parentElement.hidden)")
        expect(tab.locator("#limits-low")).not_to_be_visible()
        assert {ask(one, filtered(), "/up/mcp") for _ in range(3)} == {200}, "one has the list, the others an error"
        expect(tab.locator("#guards")).not_to_contain_text("0 refused")
        with socket.create_connection(("127.0.0.1", one.port)) as client:
            client.sendall(b"GET /narrow/mcp HTTP/1.1\r\nHost: localhost\r\n\r\n")
            expect(tab.locator("#verdict")).to_contain_text("Requests to narrow: 100 % of the limit")
        expect(tab.locator("#verdict")).not_to_contain_text("narrow")
        with socket.create_connection(("127.0.0.1", one.port)), socket.create_connection(("127.0.0.1", one.port)):
            expect(tab.locator("#limits tr")).to_contain_text("Connections of clients")
            expect(tab.locator("#verdict")).to_contain_text("Connections of clients: 100 % of the limit")
        expect(tab.locator("#limits tr")).to_have_count(0)
        assert one.file is not None
        before = json.loads(one.file.read_text())
        refused_at = time.time()
        one.renew({"nothing": "here"})
        expect(tab.locator("#reload")).to_contain_text("the last reload was refused")
        for seen in ("#reload", "#wrong"):
            expect(tab.locator(seen)).to_contain_text("nothing: unknown key")
        expect(tab.locator("#wrong")).to_contain_text(
            re.compile(r"The new configuration is refused since \d\d:\d\d:\d\d: ")
        )
        since = status(one)["reload"]["since"]
        one.renew({"other": "here"})
        expect(tab.locator("#wrong")).to_contain_text("other: unknown key")
        assert status(one)["reload"]["since"] == since >= refused_at - 1, "since the first"
        tab.get_by_role("link", name="The new configuration is refused").click()
        expect(tab.locator("#reload")).to_be_in_viewport()
        one.renew(before)
        expect(tab.locator("#reload")).not_to_contain_text("refused")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_when_a_certificate_ends_is_shown_and_one_that_has_expired_is_red(
    browser: Any, gateways: Gateways, port: int, tmp_path: Path, scheme: str
) -> None:
    """It was "0 s left" in black, and a warning."""
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    certificates.signed(cert, key, days=-1 / 24)
    tls = {"certificate": str(cert), "key": str(key)}
    changed: dict[str, Any] = {"tls": tls, "upstream": {"tls": tls, "url": "https://localhost:1/mcp"}}
    with gateways.process(port, **changed) as one, opened(browser, one, scheme=scheme) as tab:
        verdict, said = tab.locator("#verdict"), tab.locator("#certificates")
        expect(said).to_contain_text("the listener: EXPIRED 1 h ago: clients cannot connect")
        expect(said).to_contain_text("up: EXPIRED 1 h ago: up may refuse it")
        expect(verdict).to_contain_text("The certificate of the listener: EXPIRED 1 h ago: clients cannot connect")
        expect(verdict).to_have_class("bad")
        expect(said).to_have_class("bad")
        red, black = (
            tab.evaluate(f"getComputedStyle(document.querySelector('{at}')).color") for at in ("#certificates", "body")
        )
        assert red != black
        certificates.signed(cert, key, begins_days=1 / 12)
        one.signal(signal.SIGHUP)
        expect(said).to_contain_text("the listener: NOT YET VALID for 2 h: clients cannot connect")
        certificates.signed(cert, key, days=90)
        one.signal(signal.SIGHUP)
        expect(verdict).to_have_text("Nothing is wrong: 1 not asked yet")
        expect(said).not_to_have_class("bad")
        expect(said).to_contain_text("up: 89 days left")
        certificates.signed(cert, key, days=13)
        day = (datetime.now(UTC) + timedelta(days=13)).date()
        one.signal(signal.SIGHUP)
        expect(verdict).to_contain_text(f"certificate shown to up ends on {day}")


def test_a_drain_and_its_progress_are_shown(browser: Any, gateways: Gateways, port: int) -> None:
    with shown(browser, gateways, port, limits={"shutdown_delay": "6s"}) as (one, tab):
        one.signal(signal.SIGTERM)
        expect(tab.locator("#state")).to_have_text("Draining")
        expect(tab.locator("#drain")).to_contain_text("0 requests left, ends within")
        expect(tab.locator("#verdict")).to_have_text("Draining: 0 requests under way")
        tab.locator("#pause").click()  # it goes away while nobody asks


# ---- it holds still ----


def test_rows_hold_still_under_the_pointer_and_a_selection(browser: Any, gateways: Gateways, port: int) -> None:
    with shown(browser, gateways, port, "well", "other") as (one, tab):
        rows, held = tab.locator("#requests tr"), tab.locator("#held")
        ask(one, call("ping"), "/well/mcp")
        expect(rows).to_have_count(1)
        rows.first.hover()
        ask(one, call("tools/list"), "/well/mcp")
        ask(one, call("tools/list"), "/well/mcp")
        expect(held).to_have_text("Held under the pointer; 2 new")
        assert rows.count() == 1 and "ping" in rows.first.inner_text()
        tab.get_by_role("heading", name="Requests").hover()
        expect(rows).to_have_count(3)
        expect(held).to_have_text("")
        assert "tools/list" in rows.first.inner_text() and "ping" in rows.nth(2).inner_text()
        row = tab.locator("#upstreams tr").filter(has_text="well")
        rate = row.locator("td").nth(1)
        expect(rate).not_to_have_text(NOTHING)
        tab.evaluate("window.kept = document.querySelector('#upstreams tr th span')")
        tab.evaluate("getSelection().selectAllChildren(kept)")
        for _ in range(2):
            before = rate.inner_text()
            for _ in range(20):
                ask(one, call("ping"), "/well/mcp")
            ask(one, call("ping"), "/other/mcp")
            expect(rate).not_to_have_text(before)
        assert tab.evaluate("kept.isConnected && String(getSelection())") == "well"


def test_fifty_upstreams_can_be_searched_and_sorted(browser: Any, gateways: Gateways, port: int) -> None:
    many = [f"team-{n:02}" for n in range(47)] + [f"dead-{n}" for n in range(3)]
    with shown(browser, gateways, port, *many) as (one, tab):
        for name in ("dead-0", "dead-1", "dead-2", "team-07"):
            for _ in range(1 + 5 * (name == "team-07")):
                ask(one, call("ping"), f"/{name}/mcp")
        for _ in range(5):
            ask(one, call("tools/call"), "/team-03/mcp")
        for _ in range(21):
            ask(one, call("initialize"), "/team-04/mcp")
        said = "team-03 failed all 5 requests. team-04 refused all 21 requests. dead-0 is down. 2 more"
        expect(tab.locator("#verdict")).to_have_text(said)  # what is down hides nothing else
        row = tab.locator("#upstreams tr").filter(has_text="team-04")
        expect(row.locator(".state")).to_contain_text(
            re.compile(r"^up, refuses allsince .*: the upstream answered 401")
        )
        expect(row).to_contain_text("refused 100 %")
        expect(tab.locator("#upstreams tr").nth(3).locator(".state > span")).to_have_text("fails all")
        expect(tab.locator("#upstreams .good")).to_have_count(1)
        assert len(names(tab)) == 10
        tab.get_by_role("button", name="Show all 50").click()
        assert names(tab)[:5] == ["dead-0", "dead-1", "dead-2", "team-03", "team-04"]
        tab.get_by_role("button", name="Requests/s").click()
        assert names(tab)[0] == "team-04"
        assert tab.get_by_role("columnheader", name="Requests/s").get_attribute("aria-sort") == "ascending"
        tab.get_by_role("button", name="Name", exact=True).click()
        assert names(tab) == sorted(many)
        tab.get_by_label("Search").fill("DEAD-")
        assert names(tab) == ["dead-0", "dead-1", "dead-2"]
        expect(tab.locator("#found")).to_have_text("3 of 50 upstreams")
        tab.get_by_label("Search").fill("")
        assert len(names(tab)) == 50


# ---- a gateway that does not answer ----


def test_a_gateway_that_hangs_is_seen(browser: Any, gateways: Gateways, port: int) -> None:
    with shown(browser, gateways, port, size="phone") as (one, tab):
        one.signal(signal.SIGSTOP)
        try:
            expect(tab.locator("#state")).to_have_text(GONE, timeout=HANGS_MS)
            assert tab.evaluate("getComputedStyle(document.querySelector('section')).filter") == "grayscale(1)"
            expect(tab.locator("#wrong li > a")).to_have_text(GONE)
            expect(tab.locator("#icon")).to_have_attribute("href", "page/icon-gone.svg")
            expect(tab).to_have_title(f"{GONE} · taskgate")
            expect(tab.locator("#how-long")).to_have_text("for 6 s; what is shown is as old")
            tab.evaluate("scrollTo(0, document.body.scrollHeight)")
            assert tab.evaluate("scrollY > 300")
            for seen in (tab.locator("#wrong li > a"), tab.get_by_text("Then it hangs: restart it")):
                expect(seen).to_be_in_viewport(ratio=1)
        finally:
            one.signal(signal.SIGCONT)
        expect(tab.locator("#state")).to_have_text("Live")
        expect(tab.locator("#how-long")).to_have_text("")
        assert tab.evaluate("getComputedStyle(document.querySelector('section')).filter") == "none"


# ---- whatever the screen and the names are ----


def test_a_gateway_that_is_gone_is_seen_and_without_javascript_it_says_what_it_is(
    browser: Any, gateways: Gateways, port: int
) -> None:
    living = browser.new_context()
    with gateways.process(port) as one:
        seen = living.new_page()
        seen.goto(f"http://127.0.0.1:{one.admin}/")
        expect(seen.locator("#state")).to_have_text("Live")
        context = browser.new_context(java_script_enabled=False)
        tab = context.new_page()
        tab.goto(f"http://127.0.0.1:{one.admin}/")
        text = tab.locator("body").inner_text()
        assert "This page shows the state of taskgate" in text and "needs JavaScript" in text
        assert "Connecting" not in text and NOTHING not in text, "nothing that looks like a state"
        for link in ("page/status.json", "metrics", "readyz"):
            assert tab.locator(f"a[href='{link}']").count() == 1
            assert one.get(f"/{link}")[0] == 200
        context.close()
    expect(seen.locator("#state")).to_have_text(GONE)
    expect(seen.locator("#how-long")).to_contain_text("for ")
    living.close()
