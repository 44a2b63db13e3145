"""JSON-RPC batches of revision 2025-03-26 pass unchanged (DESIGN 3.9).

The gateway opens no batch: the server answers a filtered `tasks/list` in one. The server of these tests repeats in each
answer the bytes that it received, so that one comparison proves both directions. The TypeScript SDK's server takes
batches, too.
"""

import json
import re
from collections.abc import Iterator

import httpx
import pytest

from tests.launch import Process
from tests.real.conftest import FILTER_CAPABILITY, Json, Place, Runner, Wire, at_both, exact, ids_of

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
    "written oddly": b' \r\n[ { "id" : 1.0e0 ,"method":"ping","x":"\\u00e9\xc3\xa9" , "jsonrpc":"2.0"} \t,'
    b'{"jsonrpc":"2.0","method":"tasks/list","id":9007199254740993,"params":{"status":["working"]}}]\n ',
    "of nothing": b"[]",
}


@pytest.fixture(scope="module")
def batches(runner: Runner) -> Iterator[Place]:
    with runner.place("batches") as place:
        yield place


@pytest.mark.parametrize("body", BATCHES.values(), ids=BATCHES)
async def test_a_batch_and_its_answer_pass_to_the_byte(batches: Place, http: httpx.AsyncClient, body: bytes) -> None:
    direct, through = await at_both(http, batches, body)
    assert through == direct
    if through.status == 200:
        assert body.hex().encode() in through.body


@pytest.mark.parametrize("body", [BATCHES["of two"], BATCHES["with a filtered list"], BATCHES["with initialize"]])
async def test_a_batch_in_one_event_of_a_stream_passes_to_the_byte(
    batches: Place, http: httpx.AsyncClient, body: bytes
) -> None:
    direct, through = await at_both(http, batches, body, {"X-Answer": "stream"})
    assert through == direct
    assert through.body.startswith(b": batch\r\nid:1\r\ndata: [ ")


async def test_a_large_batch_passes_to_the_byte(batches: Place, http: httpx.AsyncClient) -> None:
    body = json.dumps([request("ping", {"pad": "x" * 200}, n) for n in range(100)] + [LIST]).encode()
    direct, through = await at_both(http, batches, body)
    # Each of the 101 answers has the whole of the request, twice as long as hexadecimal digits.
    assert len(through.body) > 101 * 2 * len(body) > 5_000_000
    assert through == direct


async def test_what_a_batch_passes_untouched_is_filtered_by_itself(batches: Place, http: httpx.AsyncClient) -> None:
    wire, initialized = await Wire(batches.gateway, http).initialize()
    assert initialized["capabilities"]["tasks"]["list"] == {"filter": FILTER_CAPABILITY}
    made = (await wire.post("tools/call", {"name": "work", "task": {}})).result["task"]["taskId"]
    assert ids_of(await wire.tasks({"taskIds": [made, "none"]})) == [made]
    listed = await exact(http, batches.gateway, json.dumps([request("tasks/list", {"taskIds": ["none"]})]).encode())
    [answer] = json.loads(listed.body)
    assert made in ids_of(answer["result"]["tasks"])


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


@pytest.mark.parametrize("name", [name for name in BATCHES if name != "written oddly"])
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
