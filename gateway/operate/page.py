"""The page for people at `/` of the admin listener: what the gateway does now, and what it spares.

In: GET requests. Out: HTML, a style, a script, and JSON that the script asks for once a second.
Always: read-only. Nothing is loaded from elsewhere: `Content-Security-Policy` enforces that. No id, token or query
string is shown.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import orjson
from aiohttp import web

from gateway.operate.metrics import Gauge, Metrics

_FOLDER: Final = Path(__file__).parent / "site"
_TYPES: Final = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_HEADERS: Final = {
    "Content-Security-Policy": "default-src 'self'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


_LIMITS: Final = {
    "index_bytes": ("Memory of all indexes", "bytes"),
    "index_sessions": ("Sessions with an index", ""),
    "connections": ("Connections of clients", ""),
    "queries_in_flight": ("Filtered lists at once", ""),
    "held_bytes": ("Buffers", "bytes"),
}


def status(metrics: Metrics, gauges: dict[str, Gauge], urls: dict[str, str], is_ready: bool) -> dict[str, Any]:
    """What the page shows. `urls` has the address of each upstream, by name."""
    metrics.recent.look()
    values = {name: value for name, (_, value) in gauges.items()}
    by_upstream = {name: value for name, value in values.items() if isinstance(value, Mapping)}
    return {
        "version": metrics.version,
        "is_ready": is_ready,
        "saved": metrics.saved(),
        "upstreams": [
            {
                "name": name,
                "url": url,
                "up": bool(by_upstream["upstream_up"][name]),
                "in_flight": by_upstream["upstream_requests_in_flight"][name],
                "requests_max": by_upstream["upstream_requests_max"][name],
                **metrics.traffic(name),
            }
            for name, url in urls.items()
        ],
        "limits": [
            {"what": what, "unit": unit, "used": values[name], "max": values[f"{name}_max"]}
            for name, (what, unit) in _LIMITS.items()
            if f"{name}_max" in values
        ],
        "queries": list(metrics.recent.queries),
        "requests": list(metrics.recent.requests),
        "failures": list(metrics.recent.failures),
    }


def routes(read_status: Callable[[], dict[str, Any]]) -> list[web.RouteDef]:
    """The routes of the page. `read_status` gives what it shows."""

    async def read(_: web.Request) -> web.Response:
        return web.Response(body=orjson.dumps(read_status()), content_type="application/json", headers=_HEADERS)

    found = [web.get("/page/status.json", read)]
    for file in _FOLDER.iterdir():
        if file.suffix in _TYPES:
            address = "/" if file.name == "index.html" else f"/page/{file.name}"
            found.append(web.get(address, _file(file.read_bytes(), _TYPES[file.suffix])))
    return found


def _file(data: bytes, kind: str) -> Callable[[web.Request], Any]:
    async def send(_: web.Request) -> web.Response:
        return web.Response(body=data, content_type=kind, charset="utf-8", headers=_HEADERS)

    return send
