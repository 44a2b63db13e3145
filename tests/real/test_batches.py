"""JSON-RPC batches of revision 2025-03-26 pass unchanged (DESIGN 3.9): the server answers a filtered list in one."""

import json
import re
from collections.abc import Iterator

import httpx
import pytest

from tests.launch import Process
from tests.real.conftest import Json, Place, Runner, Wire, exact, ids_of

REVISION = "2025-03-26"


def request(method: str, params: Json | None = None, message_id: int | str = 1) -> Json:
    return {"jsonrpc": "2.0", "id": message_id, "method": method, **({"params": params} if params else {})}


LIST = request("tasks/list", {"status": ["working"], "orderBy": "createdAt"}, "list")
NOTIFICATION: Json = {"jsonrpc": "2.0", "method": "notifications/initialized"}
INITIALIZE = request(
    "initialize",
    {"protocolVersion": REVISION, "capabilities": {}, "clientInfo": {"name": "batches", "version": "1"}},
    "initialize",
)
BATCHES: dict[str, bytes] = {
    "of two": json.dumps([request("ping"), request("tools/list", message_id="1")]).encode(),
    "of one": json.dumps([request("ping")]).encode(),
    "with a notification": json.dumps([NOTIFICATION, request("ping")]).encode(),
    "of notifications": json.dumps([NOTIFICATION, NOTIFICATION]).encode(),
    "with a filtered list": json.dumps([request("ping"), LIST]).encode(),
    "of one filtered list": json.dumps([LIST]).encode(),
    "of filtered lists of one id": json.dumps([LIST, LIST]).encode(),
    "with initialize": json.dumps([INITIALIZE, request("ping")]).encode(),
    "of nothing": b"[]",
}


@pytest.fixture(scope="module")
def batches(runner: Runner) -> Iterator[Place]:
    with runner.place("batches") as place:
        yield place


async def test_what_a_batch_did_is_in_the_next_filtered_list(batches: Place, http: httpx.AsyncClient) -> None:
    """DESIGN 6: an answer reflects everything that passed through this gateway before the request came in."""
    wire, _ = await Wire(batches.gateway, http).initialize()
    first = (await wire.post("tools/call", {"name": "work", "task": {}})).result["task"]["taskId"]
    assert first in ids_of(await wire.tasks({"status": ["working"]}))
    batch = [
        request("tools/call", {"name": "work", "task": {}}, "made"),
        request("tasks/cancel", {"taskId": first}, "cancelled"),
    ]
    headers = {"Mcp-Protocol-Version": wire.headers["mcp-protocol-version"]}
    answered = await exact(http, batches.gateway, json.dumps(batch).encode(), headers)
    second = json.loads(answered.body)[0]["result"]["task"]["taskId"]
    working = ids_of(await wire.tasks({"status": ["working"]}))
    assert second in working
    assert first not in working


# The TypeScript SDK


@pytest.fixture(scope="module")
def everything(runner: Runner) -> Iterator[tuple[Process, Process]]:
    with runner.everything() as server, runner.gateway(server) as gateway:
        server.wait()
        gateway.wait()
        yield server, gateway


@pytest.mark.parametrize("name", BATCHES)
async def test_a_batch_to_the_typescript_server_gets_the_events_it_gets_directly(
    everything: tuple[Process, Process], http: httpx.AsyncClient, name: str
) -> None:
    answers = []
    for process in everything:
        url = f"{process.origin}/mcp"
        opened = await exact(http, url, json.dumps(INITIALIZE).encode())
        [session] = opened.values("mcp-session-id")
        answer = await exact(http, url, BATCHES[name], {"Mcp-Session-Id": session})
        # An event's id has its stream's name, a time and chance in it.
        body = re.sub(rb"(?m)^id: .*$", b"id: <id>", answer.body)
        fields = [(key, value) for key, value in answer.headers if key.lower() != b"mcp-session-id"]
        answers.append((answer.status, answer.reason, fields, body))
    direct, through = answers
    assert through == direct
    if "filtered" in name:
        assert b'"tasks":[]' in through[3]
        assert b"taskgate" not in through[3]
