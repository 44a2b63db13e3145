"""The page for people at `/` of the admin listener, in a real browser: what a person sees and presses (DESIGN 8)."""

import importlib
import inspect
import json
import re
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.client import HTTPConnection
from typing import Any, Final

import pytest

from gateway.errors import GatewayError
from gateway.operate import status_page as shown
from tests.launch import ROOT, Gateway, Gateways
from tests.relay.messages import answer, call, filtered, page, result, task
from tests.relay.rig import sent
from tests.tools import tool
from tests.upstream import in_a_thread

playwright: Any = importlib.import_module("playwright.sync_api")
expect: Any = playwright.expect

SIZES: Final = {"narrow": (360, 740), "phone": (390, 844), "wide": (1280, 900)}
NOTHING: Final = "\N{EN DASH}"  # in place of a figure
HOSTILE: Final = "<img src=x onerror=alert(1)>"
WAIT_MS: Final = 30_000  # for what must be seen: a machine may be busy
SECRETS: Final = ("s3cr3t-token", "s3cr3t-session", "s3cr3t-task", "s3cr3t-query")


def answered(_head: bytes, body: bytes) -> bytes:
    """An upstream: three tasks to `tasks/list`, 500 to `tools/call`, 401 to `initialize`, else an empty result."""
    message = json.loads(body)
    tasks = [task(f"{SECRETS[2]}-{n}", "working" if n else "completed") for n in range(3)]
    said = result(message["id"], page(tasks) if message["method"] == "tasks/list" else {})
    return answer(said, status={"tools/call": b"500 Oh", "initialize": b"401 No"}.get(message["method"], b"200 OK"))


@pytest.fixture(scope="module")
def gateway(gateways: Gateways) -> Iterator[Gateway]:
    """A gateway before one upstream that answers, one with nothing wrong, and one that nobody listens for."""
    with in_a_thread(answered) as port:
        upstreams = [
            {"name": "research", "url": f"http://127.0.0.1:{port}/mcp"},
            {"name": "well", "url": f"http://127.0.0.1:{port}/mcp", "match": {"prefix": "/well"}},
            {"name": "gone", "url": "http://127.0.0.1:1/mcp", "match": {"prefix": "/gone"}},
        ]
        with gateways.process(port, upstreams=upstreams) as one:
            yield one


def ask(gateway: Gateway, message: dict[str, Any], target: str = "/mcp?key=s3cr3t-query") -> int:
    who = {"Authorization": f"Bearer {SECRETS[0]}", "Mcp-Session-Id": SECRETS[1]}
    return sent(gateway, message, target, who)[0]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Debian's chromium."""
    chromium = tool("chromium", "chromium")
    expect.set_options(timeout=WAIT_MS)
    with playwright.sync_playwright() as driver:
        launched = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        yield launched
        launched.close()


@contextmanager
def opened(browser: Any, gateway: Gateway, size: str = "wide", scheme: str = "light") -> Iterator[Any]:
    """The page, once it is live. What it says on the console, or asks of anywhere else, fails the test."""
    width, height = SIZES[size]
    context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
    tab = context.new_page()
    faults: list[str] = []
    tab.on("console", lambda said: faults.append(said.text) if said.type in ("error", "warning") else None)
    tab.on("pageerror", lambda error: faults.append(str(error)))
    origin = f"http://127.0.0.1:{gateway.admin}"
    tab.on("request", lambda asked: faults.append(asked.url) if not asked.url.startswith(origin) else None)
    tab.goto(f"{origin}/")
    expect(tab.locator("#state")).to_have_text("Live")
    yield tab
    context.close()
    assert faults == []


EVERYWHERE: Final = (("narrow", "dark"), ("wide", "light"))


@pytest.mark.parametrize(("size", "scheme"), EVERYWHERE)
def test_everything_can_be_seen_and_pressed(browser: Any, gateway: Gateway, size: str, scheme: str) -> None:
    with opened(browser, gateway, size, scheme) as tab:
        assert ask(gateway, filtered()) == 200
        assert ask(gateway, call("ping")) == ask(gateway, call("ping"), "/well/mcp") == 200
        assert ask(gateway, call("tools/call")) == 500
        assert ask(gateway, call("ping"), "/gone/mcp") == 502
        rows = tab.locator("#requests tr")
        if size == "narrow":  # the logs are folded there
            for log in tab.locator(".log").all():
                expect(log.locator("tr").last).to_be_hidden()
                log.locator("summary").click()
        expect(rows.filter(has_text="tasks/list").first).to_be_visible()
        expect(rows.filter(has_text="the upstream answered 500").first).to_be_attached()
        expect(tab.locator("#upstreams tr").filter(has_text="research")).to_contain_text("up")
        expect(tab.locator("#upstreams tr").filter(has_text="gone")).to_contain_text("down")
        expect(tab.locator("#queries tr").first).to_contain_text("research")
        expect(tab.locator("#queries-answered")).not_to_have_text("0")

        # A row's text joins its cells, so each is looked for by the whole text of a cell. Other tests, which may run
        # before this one, see to failures with status 200, but not of a `ping`.
        pings = rows.filter(has=tab.get_by_text("ping", exact=True))
        answered, failed = (pings.filter(has=tab.get_by_text(status, exact=True)) for status in ("200", "502"))
        tab.get_by_label("Only what failed").check()
        expect(answered).to_have_count(0)
        expect(failed.first).to_be_attached()
        tab.get_by_label("Only what failed").uncheck()
        expect(answered.first).to_be_attached()

        button = tab.get_by_role("button", name="Pause")
        button.click()
        expect(tab.locator("#state")).to_have_text("Paused")
        expect(button).to_have_attribute("aria-pressed", "true")
        button.click()
        expect(tab.locator("#state")).to_have_text("Live")
        wider = tab.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert wider <= 0, "the page itself does not scroll sideways"
        coloured = (".bad > span", ".warn > span", ".good > span")
        texts = ("body", "#state", "h1 span", *coloured, "thead th", "td small", "#verdict")
        assert contrast_min(tab, "body", texts) >= 4.5, "WCAG 2.2, 1.4.3"


def contrast_min(tab: Any, ground: str, texts: Sequence[str]) -> float:
    """The least contrast of these texts to their ground."""

    def colour_of(selector: str, name: str) -> str:
        return str(tab.evaluate(f"getComputedStyle(document.querySelector({selector!r})).{name}"))

    def luminance(colour: str) -> float:
        parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    behind = luminance(colour_of(ground, "backgroundColor"))
    pairs = (sorted((luminance(colour_of(text, "color")), behind)) for text in texts)
    return min((light + 0.05) / (dark + 0.05) for dark, light in pairs)


def test_a_screen_reader_finds_its_parts_and_it_can_be_used_by_keyboard(browser: Any, gateway: Gateway) -> None:
    with opened(browser, gateway) as tab:
        for message in (filtered(), call("tools/call")):  # a table without rows is not there
            ask(gateway, message)
        ask(gateway, call("ping"), "/gone/mcp")
        for name in ("tasks", "reasons", "queries", "requests"):
            expect(tab.locator(f"#{name} tr").first).to_be_visible()
        assert tab.get_by_role("banner").count() == 1 and tab.get_by_role("main").count() == 1
        tables = ["Upstreams", "Failures by reason", "Tasks", "Last queries", "Requests"]
        expect(tab.get_by_role("heading", level=2).first).to_have_text("Upstreams")
        names = [*tables[:3], "The gateway", "Limits", "Saved since the start", *tables[3:]]
        assert tab.get_by_role("heading", level=2).all_inner_texts() == names
        for name in tables:
            assert tab.get_by_role("region", name=name, exact=True).get_by_role("table").count() == 1
        for name in ("First and last seen", "In flight", "Matching"):
            assert tab.get_by_role("columnheader", name=name, exact=True).count() == 1
        assert tab.get_by_role("status").inner_text() == "Live"
        assert tab.locator("html").get_attribute("lang") == "en"
        assert tab.locator("meter:not([aria-label])").count() == 0
        assert tab.locator("th:not([scope])").count() == 0
        reached = []
        while "legend" not in reached:
            tab.keyboard.press("Tab")
            reached.append(tab.evaluate("document.activeElement.id || document.activeElement.parentElement.id || '?'"))
            assert tab.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none"
            assert len(reached) < 50
        assert reached[1:3] == ["pause", "?"] and {"search", "failures"} <= {*reached}, "what is wrong comes first"
        assert tab.locator("[tabindex='0']").count() == 5
        tab.locator("#pause").focus()
        tab.keyboard.press("Space")
        expect(tab.locator("#state")).to_have_text("Paused")
        tab.locator("#failures").focus()
        tab.keyboard.press("Space")
        expect(tab.locator("#failures")).to_be_checked()


def test_no_secret_is_on_it_and_text_is_text(browser: Any, gateway: Gateway) -> None:
    with opened(browser, gateway) as tab:
        ask(gateway, filtered())
        ask(gateway, filtered(status=["working"], cursor=SECRETS[2]))
        ask(gateway, call(HOSTILE))
        ask(gateway, call("x"), f"/gone/{SECRETS[3]}")
        expect(tab.locator("#requests tr").filter(has_text="other").first).to_be_attached()
        told = tab.content() + gateway.get("/page/status.json")[1]
        for secret in SECRETS:
            assert secret not in told
        assert HOSTILE not in told
        tab.evaluate(
            "text => show({...last, queries: [{at: 0, upstream: text, outcome: text, reason: text, requests: 0,"
            " spared_requests: 0, tasks: 0, total: 0}]})",
            HOSTILE,
        )
        assert tab.locator("#queries td").nth(3).inner_text() == HOSTILE, "were it HTML, it would not be seen"
        assert tab.locator("img").count() == 0


def test_each_reason_says_what_to_do() -> None:
    script = (ROOT / "gateway/operate/site/page.js").read_text()
    table = script.partition("const REASONS = {")[2].partition("};")[0]
    said = {name: json.loads(row) for name, row in re.findall(r"^  (\w+): (\[.*\]),$", table, re.M)}
    assert all(words != name for name, (words, *_) in said.items())
    for _, _, section, *files in said.values():
        assert has_section(section, *files), section
    kinds = [*GatewayError.__subclasses__()]
    for kind in kinds:
        kinds += kind.__subclasses__()
    statuses = {f"UpstreamStatus{status}" for status in (401, 403, 404, 429)}
    others = {"UpstreamStatus", *statuses, "UpstreamPath", "OtherPath", "JsonRpcError", "ClientLeft", "RequestCut"}
    assert said.keys() == {kind.__name__ for kind in kinds} | others


def has_section(title: str, file: str = "troubleshooting.md") -> bool:
    return f"\n## {title}\n" in (ROOT / "docs" / file).read_text()


def test_each_fault_says_what_to_do_and_where_more_stands() -> None:
    kinds = set(re.findall(r"Trouble\((?:level|\"\w+\"), \"(\w+)\"", inspect.getsource(shown)))
    table = (ROOT / "gateway/operate/site/page.js").read_text().partition("const DOES = {")[2].partition("};")[0]
    said = {name: json.loads(row) for name, row in re.findall(r"^  (\w+): (\[.*\]),$", table, re.M)}
    assert kinds | {*(kind for *_, kind in shown._LIMITS.values()), "silent"} == said.keys() | {"guard"}, (
        "its row of a reason says it"
    )
    assert all(has_section(section) for _, section in said.values())


def test_the_documents_are_linked_where_the_package_names_their_address(browser: Any, gateway: Gateway) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    with opened(browser, gateway) as tab:
        ask(gateway, call("tools/call"))
        link = tab.locator("#reasons tr").filter(has_text="answers with status 500").locator("a")
        expect(link).to_have_text("docs/troubleshooting.md: 500 and above from the upstream")
        address = project.get("urls", {}).get("Documentation", "")
        assert (link.get_attribute("href") is None) == (tab.evaluate("last.docs") == "") == (address == "")
        tab.evaluate("show({...last, docs: 'https://taskgate.example/docs'})")
        there = "https://taskgate.example/docs/troubleshooting.md#500-and-above-from-the-upstream"
        assert link.get_attribute("href") == there


@pytest.mark.parametrize(
    "path", ["/", "/page/page.js", "/page/page.css", "/page/icon.svg", "/page/icon-gone.svg", "/page/status.json"]
)
def test_nothing_may_come_from_elsewhere(gateway: Gateway, path: str) -> None:
    connection = HTTPConnection("127.0.0.1", gateway.admin, timeout=10)
    connection.request("GET", path)
    answer = connection.getresponse()
    body = answer.read().decode()
    assert answer.status == 200
    assert answer.headers["Content-Security-Policy"] == "default-src 'self'"
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    links = re.findall(r"""(?:href|src|url|fetch)\s*[=(]\s*["']?([^"')\s>]+)""", body)
    assert not [link for link in links if "//" in link]
    connection.request("POST", path)
    assert connection.getresponse().status == 405, "read-only"
    connection.close()
