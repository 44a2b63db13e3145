"""The page for people at `/` of the admin listener. It only reads, and loads nothing from elsewhere."""

import asyncio
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import metadata
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
from gateway.operate.task_metrics import SeenTasks
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
    "index_bytes": ("Memory of all indexes", "bytes"),
    "index_sessions": ("Sessions with an index", ""),
    "connections": ("Connections of clients", ""),
    "queries_in_flight": ("Filtered lists at once", ""),
    "held_bytes": ("Buffers", "bytes"),
}
_NEAR: Final = 0.8  # of a limit, as the alert TaskgateNearLimit has it
_MANY: Final = 0.05  # of all requests, as the alert TaskgateUpstreamFailing has it
_FAILED_MIN: Final = 5  # tasks of a tool, and more than half, as the alert TaskgateTasksFailing has it
_RENEW_S: Final = 14 * 86_400.0  # before a certificate ends, as the alert TaskgateCertificateEnds has it
_DRIFTS_S: Final = 300.0  # so long after the last request that drifts
_NAMES_MAX: Final = 5  # of header fields
_TOOL_CHARS_MAX: Final = 40  # of a tool's name, which a server or a client chose
_DOES: Final = {  # about each fault: what to do, and the section of docs/troubleshooting.md that says more
    "down": ("Upstreams says why. Does the server run, and is its url right?", "502 Bad Gateway"),
    "failing": ("Failures by reason says which, and what to do about each.", "500 and above from the upstream"),
    "tasks": ("Read why: taskgate tasks prints the failed ones with their messages.", "Tasks fail"),
    "certificate": ("Renew the file under the same name, and send SIGHUP.", "A certificate ends"),
    "store": ("The log says why. Do not restart before it is back, or lose what it would keep.", "The store fails"),
    "reload": ("The configuration before is in force. The log says what is wrong with the new one.", "Reload refused"),
    "limit": ("Raise the limit, or look at what uses it up.", "503 Service Unavailable"),
    "drift": ("Keep it out, or name what tells users apart in identity_headers.", "Each request is another caller"),
}
_PROJECT: Final = dict(url.split(", ", 1) for url in metadata("taskgate").get_all("Project-URL") or ())


class Facts(NamedTuple):
    """What the gateway knows at one moment. Times are in seconds since 1970."""

    gauges: Mapping[str, Gauge]
    upstreams: Sequence[dict[str, Any]]
    """The name, url and state of each: since when, and why; and the address for clients, if it has one."""
    certificates: Mapping[str, Validity] = {}  # those shown to upstreams, by name; the listener's under ""
    guards: GuardLimits | None = None
    draining: tuple[float, float] | None = None  # since when, and when the last connections are closed


class Page:
    """What the page shows. `read` tells what is so now."""

    def __init__(self, metrics: Metrics, read: Callable[[], Facts]) -> None:
        self._metrics, self._read = metrics, read
        self._rates, self._tasks = Rates(metrics), SeenTasks(metrics)
        metrics.registry.register(self._tasks)

    async def running(self, _: web.Application) -> AsyncIterator[None]:
        """Keep the counts of the last minutes, as long as the listener runs."""

        async def sample() -> None:
            while True:
                await asyncio.sleep(SLOT_S)
                self._rates.sample()
                self._tasks.sample()

        task = asyncio.create_task(sample())
        yield
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task

    def status(self) -> dict[str, Any]:
        metrics, facts = self._metrics, self._read()
        metrics.recent.opened()
        values = {name: value for name, (_, value) in facts.gauges.items()}
        every, each, reasons = self._rates.show()
        by_upstream = {name: value for name, value in values.items() if isinstance(value, Mapping)}
        tasks, now, certificates = self._tasks.show(), time(), facts.certificates.items()
        shown: dict[str, Any] = {
            "version": VERSION,
            "docs": _PROJECT.get("Documentation", "").rstrip("/"),
            "now": now,
            "began_at": metrics.began_at,
            "reload": {"at": metrics.reloaded_at, "refused": not metrics.reload_succeeded},
            "draining": facts.draining,
            "store_up": values.get("store_up"),
            "guards": None if facts.guards is None else msgspec.to_builtins(facts.guards),
            "certificates": {name: valid.ends_at for name, valid in certificates},
            "invalid_certificates": {name: fault for name, valid in certificates if (fault := valid.fault(name, now))},
            "under_way": sum(by_upstream["requests_in_flight"].values()),
            "traffic": every,
            "saved": metrics.saved(),
            "reasons": self._reasons(reasons),
            "upstreams": [
                {
                    **upstream,
                    "in_flight": by_upstream["upstream_requests_in_flight"][upstream["name"]],
                    "requests_max": by_upstream["upstream_requests_max"][upstream["name"]],
                    **each.get(upstream["name"], {}),
                    "tasks": None if tasks is None else tasks.get(upstream["name"], []),
                }
                for upstream in facts.upstreams
            ],
            "limits": [
                {"what": what, "unit": unit, "used": values[name], "max": values[f"{name}_max"]}
                for name, (what, unit) in _LIMITS.items()
                if f"{name}_max" in values
            ],
            **{name: list(getattr(metrics.recent, name)) for name in ("queries", "requests", "failures")},
        }
        return {"verdict": _verdict(shown), **shown}

    def _reasons(self, counts: Mapping[Reason, list[int]]) -> list[dict[str, Any]]:
        """Failures by reason, over all upstreams: those that clients could not help first, the most frequent first."""
        groups = defaultdict[tuple[str, bool], list[Reason]](list)
        for reason in sorted(counts, key=lambda reason: -counts[reason][-1]):
            groups[reason.failure, reason.is_fault].append(reason)
        rows = []
        for (failure, is_fault), reasons in groups.items():
            recent = [self._metrics.recent.reasons[reason] for reason in reasons]
            last = max(recent, key=lambda failures: failures.last)
            counted = map(sum, zip(*(counts[reason] for reason in reasons), strict=True))
            row = {
                "failure": failure,
                "is_fault": is_fault,
                "counts": [*counted, sum(failures.count for failures in recent)],
                "upstreams": [r.upstream for r in reasons if counts[r][-1]] or [r.upstream for r in reasons],
                "since": min((f.since for f in recent if f.last >= last.since), default=last.since),
                "last": last.last,
                "why": last.why,
            }
            rows.append(row)
        return sorted(rows, key=lambda row: (not row["is_fault"], -row["counts"][1], -row["last"]))


def _verdict(shown: Mapping[str, Any]) -> dict[str, Any]:
    """Whether anything is wrong, in words, and what to do; `level` is good, warn or bad."""
    found = list(_faults(shown))
    states = [upstream["state"] for upstream in shown["upstreams"]]
    parts = [f"{count} {state}" for state in ("up", "not asked yet") if (count := states.count(state))]
    said = [text for _, _, text in found] or ["nothing is wrong: " + ", ".join(parts)]
    text = ", ".join([*said, *_waiting(shown["upstreams"])])
    level = "bad" if any(level == "bad" for level, _, _ in found) else "warn" if found else "good"
    does = [_DOES[kind] for kind in dict.fromkeys(kind for _, kind, _ in found) if kind in _DOES]
    return {"level": level, "text": text[0].upper() + text[1:], "do": does}


def _tools(upstreams: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return [tool for upstream in upstreams for tool in upstream["tasks"] or ()]


def _waiting(upstreams: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """How many tasks wait for input, and how long the oldest does, if any does."""
    live = [waiting for tool in _tools(upstreams) if (waiting := tool["live"].get("input_required"))]
    if count := sum(waiting["count"] for waiting in live):
        who = f"{count} tasks wait for input, the oldest" if count > 1 else "1 task waits for input,"
        yield f"{who} for {span(max(waiting['oldest_s'] for waiting in live))}"


def _failing(upstreams: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """How many tasks failed in the last 5 minutes, of the tools most of whose tasks did."""
    ends = [(tool["tool"], Counter(tool["ended"]["5m"])) for tool in _tools(upstreams)]
    found = [(tool, n) for tool, n in ends if n["failed"] >= max(_FAILED_MIN, n.total() // 2 + 1)]
    if found:
        whose = f"{len(found)} tools" if len(found) > 1 else short(found[0][0], _TOOL_CHARS_MAX) or "an unknown tool"
        failed, ended = sum(n["failed"] for _, n in found), sum(n.total() for _, n in found)
        yield f"{failed} of {ended} tasks of {whose} failed in the last 5 minutes"


def _faults(shown: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """What is wrong: its level, its kind, and in words; the worst first."""
    upstreams, failing = shown["upstreams"], shown["traffic"]["failing"][-1]
    down = [upstream["name"] for upstream in upstreams if upstream["state"] == "down"]
    if down:
        many = f"{len(down)} of {len(upstreams)} upstreams"
        yield "bad", "down", f"{many} down" if len(upstreams) > 1 else "the upstream is down"
    if failing:
        percent = f"{100 * failing:.0f}" if failing >= 0.01 else "under 1"
        yield "bad" if failing > _MANY else "warn", "failing", f"{percent} % of requests failing in the last 5 minutes"
    yield from (("warn", "tasks", said) for said in _failing(upstreams))
    for name, fault in shown["invalid_certificates"].items():
        yield "bad", "certificate", f"{_whose(name)}: {fault}"
    if shown["store_up"] == 0:
        yield "warn", "store", "the store fails"
    if shown["reload"]["refused"]:
        yield "warn", "reload", "the last reload was refused"
    for limit in shown["limits"]:
        if limit["max"] and limit["used"] >= _NEAR * limit["max"]:
            yield "warn", "limit", f"{limit['what']}: {100 * limit['used'] / limit['max']:.0f} % of the limit"
    for upstream in upstreams:
        name, share = upstream["name"], upstream["in_flight"] / upstream["requests_max"]
        if share >= _NEAR:
            yield "warn", "limit", f"requests to {name}: {100 * share:.0f} % of the limit"
        if shown["now"] - upstream.get("drifts_at", 0.0) < _DRIFTS_S:  # over stdio there are no fields
            fields = ", ".join(upstream["drifting"][:_NAMES_MAX])
            yield "warn", "drift", f"each request to {name} is another caller ({fields}): see identity_headers"
    for name, ends_at in shown["certificates"].items():
        if ends_at - shown["now"] < _RENEW_S and name not in shown["invalid_certificates"]:
            yield "warn", "certificate", f"{_whose(name)} ends on {datetime.fromtimestamp(ends_at, UTC):%Y-%m-%d}"
    if shown["draining"] is not None:
        yield "warn", "drain", f"draining: {shown['under_way']:.0f} requests under way"


def _whose(name: str) -> str:
    """The certificate shown to the upstream of that name, or the listener's."""
    return f"the certificate {f'shown to {name}' if name else 'of the listener'}"


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
