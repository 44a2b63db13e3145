"""The symptoms of docs/troubleshooting.md, each brought about: what the handbook says to look at is there."""

import asyncio
import re
import signal
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import pytest

from tests.certificates import signed
from tests.deploy import ROOT
from tests.launch import Gateway, Gateways, Samples, changes, eventually, listening, port_of
from tests.relay.messages import answer, call, fault, filtered, page, post, request, response, result, task
from tests.relay.rig import Place, Rig, Script, Server, answers, body, meant, rig_at, says

DESCRIPTORS: Final = 256
HANDBOOK: Final = (ROOT / "docs/troubleshooting.md").read_text()

Scenario = Callable[[Rig], Awaitable[None]]
SCENARIOS: dict[str, Scenario] = {}


@dataclass(frozen=True)
class Sign:
    """What shows a symptom: metrics, and the texts of one line of the log."""

    metrics: list[str]
    texts: list[str]


def symptoms() -> dict[str, list[Sign]]:
    """The paragraphs "Metric: ... Log: ..." of each section that has one."""
    found: dict[str, list[Sign]] = {}
    for section in HANDBOOK.split("\n## ")[1:]:
        title, *paragraphs = section.split("\n\n")
        for paragraph in paragraphs:
            if "Metric: " in paragraph or "Log: " in paragraph:
                metrics, _, log = paragraph.partition("Log: ")
                quoted = [re.findall(r"`([^`]*)`", text) for text in (metrics, re.sub(r"\(.*?\)", "", log))]
                found.setdefault(title, []).append(Sign(*quoted))
    return found


def shows(metric: str, before: Samples, after: Samples) -> bool:
    """Whether a metric as the handbook has it, `name{labels}` or `name == value`, tells of the symptom."""
    read = re.fullmatch(r"(\w+)(?:\{(.*)\})?(?: (==|>) (\d+))?", metric)
    assert read is not None, metric
    name, labels, relation, bound = read.groups()
    wanted = dict(re.findall(r'(\w+)="([^"]*)"', labels or ""))
    if relation is None:
        return changes(before, after, name, **wanted) != 0
    values = [
        value for (sample, given), value in after.items() if sample == name and wanted.items() <= dict(given).items()
    ]
    return any(value == float(bound) if relation == "==" else value > float(bound) for value in values)


def scenario(symptom: str) -> Callable[[Scenario], Scenario]:
    def note(given: Scenario) -> Scenario:
        SCENARIOS[symptom] = given
        return given

    return note


async def asked(rig: Rig, name: str, message: Any, status: int) -> None:
    said = await rig.ask(post(message, rig.session, target=b"/" + name.encode() + b"/mcp"))
    assert meant(said) == status, said


PAGES: Final = {None: page([task("t-1")], "2"), "2": page([task("t-2")], "3"), "3": page([task("t-3")])}
# Of a symptom: what the upstream says, if it says anything; which of the three is asked, what, and the status.
ASKED: Final[dict[str, tuple[Script | None, str, Any, int]]] = {
    "502 Bad Gateway": (None, "gone", call("ping"), 502),
    "504 Gateway Timeout": (None, "up", call("ping"), 504),
    "500 and above from the upstream": (says(response(b"no", status=b"500 Oh")), "up", call("ping"), 500),
    "The login fails, or goes round in circles (401)": (
        says(response(b"", b"WWW-Authenticate: Bearer", status=b"401 Unauthorized")),
        *("up", call("ping"), 401),
    ),
    "An upstream refuses everything": (says(response(b"", status=b"403 No")), "up", call("tools/call"), 403),
    "404 from the gateway": (None, "elsewhere", call("ping"), 404),
    "A filtered list is empty": (Server({None: page([task("t-1", "completed")])}), "up", filtered(), 200),
    "A filtered list fails": (says(response(b"", status=b"429 Too Many Requests")), "up", filtered(), 429),
    "A filtered list is not filtered": (Server({None: page([])}), "up", call("tasks/list", staus=["working"]), 200),
    "The first query is slow": (Server(PAGES), "up", filtered(), 200),
    "Memory grows": (Server({None: page([task("t-1", statusMessage="x" * 10_000)])}), "up", filtered(), 200),
    "A task does not end": (Server({None: page([task("t-stuck")])}), "up", filtered(), 200),
    "Tasks fail": (
        says(answer(result(1, {"task": task("t-failed", "failed")}))),
        *("up", call("tools/call", name="render", task={}), 200),
    ),
    "Error -32602": (
        says(answer(fault(1, -32602, "Invalid cursor"))),
        *("up", call("tasks/list", cursor="of a task that has gone"), 200),
    ),
    "The store fails": (says(answer({})), "up", call("ping"), 200),
}


def asking(script: Script | None, name: str, message: Any, status: int) -> Scenario:
    async def ask(rig: Rig) -> None:
        if script is not None:
            rig.serve(script)
        await asked(rig, name, message, status)

    return ask


SCENARIOS |= {symptom: asking(*row) for symptom, row in ASKED.items()}


@scenario("The server redirects, or answers 404 to everything")
async def _(rig: Rig) -> None:
    moved = response(b"", b"Location: /mcp/", status=b"307 Temporary Redirect")
    unknown = response(b"", status=b"404 Not Found")
    rig.serve(answers(lambda asked: unknown if body(asked)["method"] == "initialize" else moved))
    await asked(rig, "up", filtered(), 307)
    await asked(rig, "up", call("initialize"), 404)


@scenario("503 Service Unavailable")
async def _(rig: Rig) -> None:
    one = await rig.client(request(target=b"/narrow/mcp"))
    await rig.upstream.request()
    await asked(rig, "narrow", call("ping"), 503)
    await one.close()


@scenario("403 from the gateway")
async def _(rig: Rig) -> None:
    assert (await rig.ask(request(target=b"/up/mcp", host=b"gateway.example"))).status == 403


@scenario("Every query is slow")
async def _(rig: Rig) -> None:
    tasks = [task(f"t-{n}", "completed" if n > 2 else "working", f"2026-01-0{n}T00:00:00Z") for n in range(1, 10)]
    pages = {str(n) if n else None: page([one], str(n + 1)) for n, one in enumerate(tasks)}
    rig.serve(Server({**pages, str(len(tasks)): page([])}))
    for _ in range(3):  # the second one learns that the server does not know tasks/get
        await asked(rig, "up", filtered(), 200)


@scenario("Each request is another caller")
async def _(rig: Rig) -> None:
    rig.serve(Server({None: page([])}))
    for number in range(10):
        await rig.ask(post(filtered(), rig.session, b"X-Changing: %d" % number, target=b"/up/mcp"))


@scenario("Too many open files")
async def _(rig: Rig) -> None:
    many = [await rig.client() for _ in range(DESCRIPTORS // 2)]
    assert (await rig.ask(request())).status == 503
    for one in many:
        await one.close()


@scenario("Reload refused")
async def _(rig: Rig) -> None:
    rig.gateway.reconfigure({"upstreams": "one"})
    rig.gateway.signal(signal.SIGHUP)


@scenario("A client cannot connect over TLS")
async def _(rig: Rig) -> None:
    def connect() -> None:
        with socket.create_connection(("127.0.0.1", rig.gateway.port)) as sock, pytest.raises(ssl.SSLError):
            ssl.create_default_context().wrap_socket(sock, server_hostname="localhost")

    await asyncio.to_thread(connect)


@scenario("A request ends with status 499")
async def _(rig: Rig) -> None:
    one = await rig.client(post(call("ping"), target=b"/up/mcp"))
    await rig.upstream.request()
    await one.close()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """A gateway with three ways to one upstream, few descriptors, a store that is away, every line of the log."""
    gateways = Gateways(tmp_path_factory.mktemp("symptoms"))
    with listening() as sock:
        url = f"http://127.0.0.1:{port_of(sock)}/mcp"
        ways: dict[str, dict[str, object]] = {
            "up": {"url": url, "response_timeout": "300ms"},
            "gone": {"url": "http://127.0.0.1:1/mcp"},
            "narrow": {"url": url, "requests_max": 1, "connect_timeout": "100ms"},
        }
        upstreams = [{"name": name, "match": {"prefix": f"/{name}"}, **way} for name, way in ways.items()]
        settings: dict[str, Any] = {"index": {"max_age": "0s"}, "store": {"url": "redis://127.0.0.1:1"}}
        with gateways.process(port_of(sock), descriptors=DESCRIPTORS, upstreams=upstreams, **settings) as gateway:
            yield Place(gateway, sock)


def of_start(gateway: Gateway) -> list[str]:
    """What the log says before the first request."""
    lines = gateway.log.splitlines()
    serving = [number for number, line in enumerate(lines) if '"message":"serving"' in line]
    return lines[: serving[-1] + 3]  # behind it the warnings about file descriptors and the store, in either order


@pytest.fixture(scope="module")
def tls_place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """A gateway with TLS, whose certificate nobody knows."""
    folder = tmp_path_factory.mktemp("tls")
    cert, key = folder / "cert.pem", folder / "key.pem"
    signed(cert, key)
    with (
        listening() as sock,
        Gateways(folder).process(port_of(sock), tls={"certificate": str(cert), "key": str(key)}) as gateway,
    ):
        yield Place(gateway, sock)


@pytest.mark.parametrize("symptom", SCENARIOS)
async def test_what_the_handbook_says_to_look_at_is_there(request: pytest.FixtureRequest, symptom: str) -> None:
    place = request.getfixturevalue("tls_place" if "TLS" in symptom else "place")
    gateway, signs = place.gateway, symptoms()[symptom]
    before, known = await gateway.metrics(), len(gateway.log.splitlines())
    async with rig_at(place) as rig:
        await SCENARIOS[symptom](rig)

        async def told() -> bool:
            after = await gateway.metrics()
            lines = [*of_start(gateway), *gateway.log.splitlines()[known:]]
            logged = all(any(all(text in line for text in sign.texts) for line in lines) for sign in signs)
            return logged and all(shows(metric, before, after) for sign in signs for metric in sign.metrics)

        await eventually(told, f"{signs}")


def test_each_symptom_of_the_handbook_is_tried() -> None:
    assert symptoms().keys() == SCENARIOS.keys()
    signs = [sign for of_one in symptoms().values() for sign in of_one]
    assert len(signs) >= 24 and all(sign.metrics for sign in signs)
    assert sum(bool(sign.texts) for sign in signs) >= 21
