"""The page for people at `/` of the admin listener. It only reads, and loads nothing from elsewhere."""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import metadata
from itertools import count
from operator import neg
from pathlib import Path
from time import time
from typing import Any, Final, NamedTuple

import msgspec
import orjson
from aiohttp import web

from gateway.config import GuardLimits
from gateway.errors import shown as short
from gateway.operate.metrics import VERSION, Gauge, Metrics
from gateway.operate.recent_failures import Reason
from gateway.operate.recent_rates import SLOT_S, Rates
from gateway.transport.tls_certificates import Validity, span

_FOLDER: Final = Path(__file__).parent / "site"
_TYPES: Final = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_HEADERS: Final = {
    "Content-Security-Policy": "default-src 'self'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
_ICONS: Final = {**_HEADERS, "Cache-Control": "max-age=86400"}  # needed when the gateway does not answer any more

_LIMITS: Final = {
    "index_bytes": ("Memory of all indexes", "bytes", "memory"),
    "index_sessions": ("Sessions with an index", "", "memory"),
    "connections": ("Connections of clients", "", "sockets"),
    "queries_in_flight": ("Filtered lists at once", "", "limit"),
    "held_bytes": ("Buffers", "bytes", "limit"),
}
_NEAR: Final = 0.8  # of a limit, as the alert TaskgateNearLimit has it
_LEVELS: Final = ("bad", "warn", "note", "good")
_MANY: Final = 0.05  # of all requests, as the alert TaskgateUpstreamFailing has it
_FAILED_MIN: Final = 5  # requests; tasks of a tool, and more than half: as the two alerts have it
_NEARLY_ALL: Final = 0.95  # of so many requests or more, as the alert TaskgateUpstreamRefuses has it
_REFUSED_MIN: Final = 20
_STUCK_S: Final = 3600.0  # as the alert TaskgateTasksStuck has it; here it is also longer than the tool's tasks take
_RENEW_S: Final = 14 * 86_400.0  # before a certificate ends, as the alert TaskgateCertificateEnds has it
_DRIFTS_S: Final = 300.0  # so long after the last request that drifts
_NAMES_MAX: Final = 5  # of header fields
_WHY_CHARS_MAX: Final = 300
_TOOL_CHARS_MAX: Final = 40  # of a tool's name, which a server or a client chose
_SHOWN_MAX: Final = 3  # faults in the banner
_PROJECT: Final = dict(url.split(", ", 1) for url in metadata("taskgate").get_all("Project-URL") or ())


class Facts(NamedTuple):
    """What the gateway knows at one moment. Times are in seconds since 1970."""

    gauges: Mapping[str, Gauge]
    upstreams: Sequence[dict[str, Any]]
    """The name, url and state of each: since when, and why; and the address for clients, if it has one."""
    certificates: Mapping[str, Validity] = {}  # those shown to upstreams, by name; the listener's under ""
    guards: GuardLimits | None = None
    draining: tuple[float, float] | None = None  # since when, and when the last connections are closed
    store_fails: tuple[float, str] | None = None  # since when, and why


class Trouble(NamedTuple):
    """Something that is wrong."""

    level: str  # bad, warn, or a note
    kind: str
    text: str
    row: tuple[str, str] = "gateway", ""  # where the page has more: a section, and the key of its row, if it has rows
    since: float | None = None
    why: str = ""


class Page:
    """What the page shows. `read` tells what is so now."""

    def __init__(self, metrics: Metrics, read: Callable[[], Facts]) -> None:
        self.metrics, self.read = metrics, read
        self._rates = Rates(metrics)

    async def sample(self) -> None:
        """Keep the counts of the last minutes, until it is cancelled."""
        while True:
            await asyncio.sleep(SLOT_S)
            self._rates.sample()

    def status(self) -> dict[str, Any]:
        metrics, facts = self.metrics, self.read()
        metrics.recent.opened()
        values = {name: value for name, (_, value) in facts.gauges.items()}
        every, each, counts = self._rates.show()
        reasons = self._reasons(counts)
        by_upstream = {name: value for name, value in values.items() if isinstance(value, Mapping)}
        tasks, now, certificates = self._rates.tasks(), time(), facts.certificates.items()
        shown: dict[str, Any] = {
            "version": VERSION,
            "docs": _PROJECT.get("Documentation", "").rstrip("/"),
            "now": now,
            "began_at": metrics.began_at,
            "reload": {"at": metrics.reloaded_at, "refused": metrics.reload_refused, "since": metrics.refused_at},
            "draining": facts.draining,
            "store_up": values.get("store_up"),
            "store_fails": facts.store_fails,
            "guards": None if facts.guards is None else msgspec.to_builtins(facts.guards),
            "certificates": {name: valid.ends_at for name, valid in certificates},
            "invalid_certificates": {name: fault for name, valid in certificates if (fault := valid.fault(name, now))},
            "under_way": sum(by_upstream["requests_in_flight"].values()),
            "traffic": every,
            "saved": metrics.saved(),
            "reasons": reasons,
            "upstreams": [
                {
                    **upstream,
                    "in_flight": by_upstream["upstream_requests_in_flight"][upstream["name"]],
                    "requests_max": by_upstream["upstream_requests_max"][upstream["name"]],
                    **each.get(upstream["name"], {}),
                    "failed": _cause(reasons, upstream["name"], is_fault=True),
                    "refusal": _cause(reasons, upstream["name"], is_fault=False),
                    "tasks": None if tasks is None else tasks.get(upstream["name"], []),
                }
                for upstream in facts.upstreams
            ],
            "limits": [
                {"name": name, "what": what, "unit": unit, "used": values[name], "max": values[f"{name}_max"]}
                for name, (what, unit, _) in _LIMITS.items()
                if f"{name}_max" in values
            ],
            **{name: list(getattr(metrics.recent, name)) for name in ("queries", "requests", "failures")},
        }
        return {"verdict": _verdict(shown), **shown, "upstreams": [_marked(one, now) for one in shown["upstreams"]]}

    def _reasons(self, counts: Mapping[Reason, list[int]]) -> list[dict[str, Any]]:
        """Why requests failed: first what does so now, there what clients could not help, there the most frequent."""
        rows = []
        for reason, grown in counts.items():
            known = self.metrics.recent.reasons[reason]
            key, spans = "\n".join(map(str, reason)), {"since": known.since, "last": known.last}
            rows.append({"key": key, **reason._asdict(), "counts": [*grown, known.count], **spans, "why": known.why})
        return sorted(rows, key=lambda row: (not row["counts"][0], not row["is_fault"], *map(neg, row["counts"])))


def _cause(reasons: Iterable[Mapping[str, Any]], upstream: str, is_fault: bool) -> dict[str, Any]:
    """Why requests to an upstream failed, or were refused, in the last 5 minutes: the first of these reasons."""
    kinds = "" if is_fault else ("UpstreamStatus ", "UpstreamRefused ")
    those = (row for row in reasons if row["upstream"] == upstream and row["is_fault"] == is_fault)
    if not (now := [row for row in those if row["counts"][1] and row["failure"].startswith(kinds)]):
        return {"row": ("upstreams", upstream)}
    return {"row": ("reasons", now[0]["key"]), "since": min(row["since"] for row in now), "why": now[0]["why"]}


def _verdict(shown: Mapping[str, Any]) -> dict[str, Any]:
    """Whether anything is wrong, in words, and what to do; `level` is good, note, warn or bad."""
    total = ("down", "refused")  # nothing gets through: before what fails in part
    found = sorted(_faults(shown), key=lambda f: (f.kind != "drain", _LEVELS.index(f.level), f.kind not in total))
    nth = defaultdict[str, Iterator[int]](count)  # of its kind: ten that are down hide nothing else; notes come last
    found.sort(key=lambda fault: (fault.level == "note", next(nth[fault.kind])))
    states = [upstream["state"] for upstream in shown["upstreams"]]
    parts = [f"{times} {state}" for state in ("up", "not asked yet") if (times := states.count(state))]
    first, more = found[:_SHOWN_MAX], len(found) - _SHOWN_MAX
    said = [fault.text for fault in first] or ["Nothing is wrong: " + ", ".join(parts)]
    text = ". ".join([*said, *[f"{more} more"] * (more > 0), *_waiting(shown)])
    level = min((fault.level for fault in found), key=_LEVELS.index, default="good")
    return {"level": level, "text": text, "faults": [fault._asdict() for fault in first], "more": max(more, 0)}


def _waiting(shown: Mapping[str, Any]) -> Iterator[str]:
    """How many tasks wait for input, and how long the oldest does, if any does."""
    tools = (tool for upstream in shown["upstreams"] for tool in upstream["tasks"] or ())
    live = [waiting for tool in tools if (waiting := tool["live"].get("input_required"))]
    if times := sum(waiting["count"] for waiting in live):
        who = f"{times} tasks wait for input, the oldest" if times > 1 else "1 task waits for input,"
        yield f"{who} for {span(shown['now'] - min(waiting['since'] for waiting in live))}"


def _upstream(upstream: Mapping[str, Any], now: float) -> Iterator[Trouble]:
    """What is wrong with the requests to an upstream, and with its tasks. What is too few to tell is a note."""
    name, row, is_down = upstream["name"], ("upstreams", upstream["name"]), upstream["state"] == "down"
    asked, failed, refused = (upstream.get(field, (0,))[-1] for field in ("asked", "faults", "refused"))
    fails_all = failed >= _FAILED_MIN and failed > _NEARLY_ALL * asked  # it may be down at this moment, or up
    if is_down and not fails_all:
        yield Trouble("bad", "down", f"{name} is down", row, upstream["since"], upstream["why"])
    elif failed:
        level = "note" if failed < _FAILED_MIN else "bad" if failed > _MANY * asked else "warn"
        text = f"{name} failed {_of(failed, asked)} requests"
        yield Trouble(level, "failing" if not fails_all else "down", text, **upstream["failed"])
    if refused > _NEARLY_ALL * asked and not is_down:
        level = "note" if asked < _REFUSED_MIN else "warn"
        yield Trouble(level, "refused", f"{name} refused {_of(refused, asked)} requests", **upstream["refusal"])
    if (share := upstream["in_flight"] / upstream["requests_max"]) >= _NEAR:
        yield Trouble("warn", "limit", f"Requests to {name}: {100 * share:.0f} % of the limit", row)
    if now - upstream.get("drifts_at", 0.0) < _DRIFTS_S:  # over stdio there are no fields
        fields = ", ".join(upstream["drifting"][:_NAMES_MAX])
        text = f"Each request to {name} is another caller ({fields}): see identity_headers"
        yield Trouble("warn", "drift", text, row)
    for tool in upstream["tasks"] or ():
        yield from _tool(name, tool, now)


def _marked(upstream: Mapping[str, Any], now: float) -> dict[str, Any]:
    """With what is wrong, with it and with each tool."""
    tools = [{**one, "wrong": [f.kind for f in _tool(upstream["name"], one, now)]} for one in upstream["tasks"] or ()]
    wrong = {fault.kind: fault._asdict() for fault in _upstream(upstream, now) if fault.level != "note"}
    return {**upstream, "tasks": upstream["tasks"] and tools, "wrong": wrong}


def _of(some: int, asked: int) -> str:
    return f"all {asked:,}" if some == asked > 1 else f"{some:,} of {asked:,}"


def _tool(upstream: str, tool: Mapping[str, Any], now: float) -> Iterator[Trouble]:
    """What is wrong with the tasks of a tool."""
    ended, row = Counter(tool["ended"]["5m"]), ("tasks", f"{upstream}\n{tool['tool']}")
    whose = short(tool["tool"], _TOOL_CHARS_MAX) or "an unknown tool"
    if (failed := ended["failed"]) >= max(_FAILED_MIN, ended.total() // 2 + 1):
        text = f"{failed} of {ended.total()} tasks of {whose} failed in the last 5 minutes"
        yield Trouble("warn", "tasks", text, row)
    working, took = tool["live"].get("working", {"since": now}), tool["duration_s"] or {"p95": 0.0}
    if (age_s := now - working["since"]) > max(_STUCK_S, took["p95"]):
        text = f"Tasks of {whose} at {upstream} do not end: {working['count']} work, the oldest for {span(age_s)}"
        yield Trouble("warn", "stuck", text, row)


def _faults(shown: Mapping[str, Any]) -> Iterator[Trouble]:
    """What is wrong."""
    if shown["draining"] is not None:
        text = f"Draining: {shown['under_way']:.0f} requests under way"
        yield Trouble("warn", "drain", text, since=shown["draining"][0])
    for upstream in shown["upstreams"]:
        yield from _upstream(upstream, shown["now"])
    for held in shown["reasons"]:
        if held["failure"] == "RateLimited" and (times := held["counts"][1]):
            text = f"Requests to {held['upstream']} beyond a guard's rate: {times:,}"
            yield Trouble("note", "guard", text, ("reasons", held["key"]), held["since"], held["why"])
    if shown["store_up"] == 0 and (store := shown["store_fails"]):
        yield Trouble("warn", "store", "The store fails", since=store[0], why=store[1])
    if why := short(shown["reload"]["refused"], _WHY_CHARS_MAX):
        yield Trouble("warn", "reload", "The new configuration is refused", since=shown["reload"]["since"], why=why)
    for limit in shown["limits"]:
        if limit["max"] and limit["used"] >= _NEAR * limit["max"]:
            text = f"{limit['what']}: {100 * limit['used'] / limit['max']:.0f} % of the limit"
            yield Trouble("warn", _LIMITS[limit["name"]][2], text, ("limits", limit["what"]))
    for name, ends_at in shown["certificates"].items():
        whose = f"The certificate {f'shown to {name}' if name else 'of the listener'}"
        if fault := shown["invalid_certificates"].get(name):
            yield Trouble("bad", "certificate", f"{whose}: {fault}")
        elif ends_at - shown["now"] < _RENEW_S:
            yield Trouble("warn", "certificate", f"{whose} ends on {datetime.fromtimestamp(ends_at, UTC):%Y-%m-%d}")


def routes(page: Page) -> list[web.RouteDef]:
    files = {file.name: file.read_bytes() for file in _FOLDER.iterdir() if file.suffix in _TYPES}

    async def read(_: web.Request) -> web.Response:
        return web.Response(body=orjson.dumps(page.status()), content_type="application/json", headers=_HEADERS)

    async def send(request: web.Request) -> web.Response:
        name = request.path.removeprefix("/page/").removeprefix("/") or "index.html"
        kind, headers = _TYPES[Path(name).suffix], _ICONS if name.endswith(".svg") else _HEADERS
        return web.Response(body=files[name], content_type=kind, charset="utf-8", headers=headers)

    addresses = ["/", *(f"/page/{name}" for name in files if name != "index.html")]
    return [web.get("/page/status.json", read), *(web.get(address, send) for address in addresses)]
