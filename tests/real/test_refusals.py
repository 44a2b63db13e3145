"""What the server would refuse, it refuses (DESIGN 5.1): the Python SDK's server, and the gateway with a full index."""

import json

import httpx
import pytest

from tests.real.conftest import Json, Place, Wire, at_both, ids_of

FILTERED: Json = {"status": ["working"]}
BOTH = "application/json, text/event-stream"
REFUSED = {
    "a revision that nobody knows": {"Mcp-Protocol-Version": "1999-01-01", "Accept": BOTH},
    "no revision at all": {"Mcp-Protocol-Version": "newest", "Accept": BOTH},
    "a client that accepts neither": {"Accept": "text/html"},
    "a client that accepts event streams alone": {"Accept": "text/event-stream"},
}


async def opened(place: Place, http: httpx.AsyncClient) -> tuple[Wire, str]:
    """A session through the gateway whose index is full, and the id of its one task."""
    wire, _ = await Wire(place.gateway, http).initialize()
    made = await wire.work("released", "task")
    assert ids_of(await wire.tasks(FILTERED)) == [made]
    return wire, made


@pytest.mark.parametrize("name", REFUSED)
async def test_what_the_server_would_refuse_it_refuses(
    python_sdk_json: Place, http: httpx.AsyncClient, name: str
) -> None:
    wire, _ = await opened(python_sdk_json, http)
    body = json.dumps({"jsonrpc": "2.0", "id": 7, "method": "tasks/list", "params": FILTERED}).encode()
    headers = {**{field.title(): value for field, value in wire.headers.items()}, **REFUSED[name]}
    direct, through = await at_both(http, python_sdk_json, body, headers)
    assert direct.status in (400, 406)
    assert (through.status, through.reason, through.body) == (direct.status, direct.reason, direct.body)
    # The index of who asks as before is still there.
    assert len(await wire.tasks(FILTERED)) == 1


@pytest.mark.parametrize(
    "fields",
    [
        *({"accept": accept} for accept in ("*/*", "application/json", "application/*;q=0.5")),
        {"mcp_protocol_version": "2025-06-18"},  # an older one that the server knows
    ],
)
async def test_what_the_server_would_accept_is_answered(
    python_sdk_json: Place, http: httpx.AsyncClient, fields: dict[str, str]
) -> None:
    wire, made = await opened(python_sdk_json, http)
    reply = await wire.at(**fields).post("tasks/list", FILTERED)
    assert ids_of(reply.result["tasks"]) == [made]
    assert reply.result["_meta"]["taskgate/total"] == 1
