"""Revision 2026-07-28 passes (DESIGN 3.9): the official 2.x TypeScript client and server, directly and through.

Both conversations (tests/node/revision_2026.mjs) run at once, each with its own server, because a server tells all its
subscribers of a change. The server of these packages checks the headers that only this revision has. It also speaks
2025-11-25: the gateway filters for a client of that revision, and not for one of 2026-07-28.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass

import httpx
import pytest

from tests.real.conftest import FILTER_CAPABILITY, Json, Place, Runner, Steps, Wire, at_both, finish, ids_of, start

REVISION = "2026-07-28"
COMPARABLE = [
    *("connect", "server/discover", "tools/list", "tools/call", "tools/call unknown", "resources/list"),
    *("resources/read", "input required", "progress", "subscriptions/listen", "tasks/get", "tasks/update"),
    *("tasks/cancel", "tasks/get unknown", "unknown method", "errors of the client"),
]
ENVELOPE: Json = {
    "_meta": {"io.modelcontextprotocol/protocolVersion": REVISION, "io.modelcontextprotocol/clientCapabilities": {}}
}
HEADERS = {"Mcp-Protocol-Version": REVISION, "Mcp-Method": "tasks/list"}
FILTERS: dict[str, Json] = {
    "status": {"status": ["working"]},
    "filter": {"filter": {"taskIds": ["task 0/\u00e9"]}},
    "order": {"orderBy": "createdAt", "order": "asc"},
    "bad": {"createdAfter": "yesterday"},
}


@dataclass(frozen=True)
class Both:
    """A server and its gateway, and what two conversations saw there."""

    place: Place
    said: list[Steps]


@pytest.fixture(scope="module")
def both(runner: Runner) -> Iterator[Both]:
    with (
        runner.node_server("revision_2026_server.mjs") as alone,
        runner.node_server("revision_2026_server.mjs") as server,
        runner.gateway(server) as gateway,
    ):
        urls = [f"{process.wait()}/mcp" for process in (alone, server, gateway)]
        straight, through = start("revision_2026", urls[0]), start("revision_2026", urls[2])
        yield Both(Place(urls[1], urls[2], server), finish(straight, through))


def list_request(params: Json) -> bytes:
    message = {"jsonrpc": "2.0", "id": 1, "method": "tasks/list", "params": params}
    return json.dumps(message).encode()


# The conversation


def test_each_step_of_the_2x_client_sees_through_the_gateway_what_it_sees_directly(both: Both) -> None:
    direct, through = both.said
    assert {step: through[step] for step in COMPARABLE} == {step: direct[step] for step in COMPARABLE}
    assert through["connect"]["result"] == {"version": REVISION, "era": "modern"}
    [called] = through["tools/call"]["exchanges"]
    assert called["sent"] == {
        "mcp-method": "tools/call",
        "mcp-name": "echo",
        "mcp-param-region": "=?base64?w6l0w6k=?=",  # a header made of an argument
        "mcp-protocol-version": REVISION,
    }
    [content] = through["tools/call"]["result"]["content"]
    assert content["text"] == "h\u00e9llo\u2028\U0001f600 from =?base64?w6l0w6k=?="
    assert all(exchange["session"] is None for step in COMPARABLE for exchange in through[step]["exchanges"])
    [content] = through["input required"]["result"]["content"]
    assert (content["text"], len(through["input required"]["exchanges"])) == ("Hello, Anna", 2)
    for method, name in (("get", "taskId"), ("update", "updated"), ("cancel", "cancelled")):
        assert through[f"tasks/{method}"]["result"][name] == "task 0/\u00e9"
    assert through["tasks/get unknown"]["error"]["code"] == -32602


def test_progress_and_subscriptions_come_while_they_happen(both: Both) -> None:
    _, said = both.said
    assert [seen["progress"] for seen in said["progress"]["result"]["progress"]] == [1, 2, 3, 4]
    # A fifth of a second apart at the server: the first can only come early if nothing waits for the end.
    times = said["times of progress"]
    assert times["elapsed_ms"][0] < times["total_ms"] - 500
    step = said["subscriptions/listen"]["result"]
    assert step["honored"] == {"toolsListChanged": True, "resourceSubscriptions": ["notes://one"]}
    methods = ["notifications/tools/list_changed", "notifications/resources/updated"]
    assert [change["method"] for change in step["changes"]] == methods
    assert (step["open"], step["closed"]) == (1, "local")


# What is not advertised, and not answered


async def test_nothing_is_advertised_in_discover(both: Both, http: httpx.AsyncClient) -> None:
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "server/discover", "params": ENVELOPE}).encode()
    headers = {**HEADERS, "Mcp-Method": "server/discover"}
    direct, through = await at_both(http, both.place, body, headers)
    assert through == direct
    assert through.status == 200
    assert b"filter" not in through.body


REFUSED = {
    **{
        f"{name}, of this revision": ({**criteria, **ENVELOPE}, HEADERS, 404, -32601)
        for name, criteria in FILTERS.items()
    },
    **{f"{name}, as its body says": ({**criteria, **ENVELOPE}, {}, 400, -32020) for name, criteria in FILTERS.items()},
    "malformed, for this revision": (FILTERS["status"], HEADERS, 400, -32602),
}


@pytest.mark.parametrize("name", REFUSED)
async def test_a_filtered_list_of_this_revision_gets_the_servers_own_error(
    both: Both, http: httpx.AsyncClient, name: str
) -> None:
    params, headers, status, code = REFUSED[name]
    direct, through = await at_both(http, both.place, list_request(params), headers)
    assert through == direct
    assert (through.status, json.loads(through.body)["error"]["code"]) == (status, code)


# Both eras at one address


async def test_a_server_of_both_eras_is_filtered_for_clients_of_the_earlier_one_alone(
    both: Both, http: httpx.AsyncClient
) -> None:
    earlier, initialized = await Wire(both.place.gateway, http).initialize()
    assert initialized["capabilities"]["tasks"]["list"] == {"filter": FILTER_CAPABILITY}
    working = ["task 0/\u00e9", "task 2/\u00e9"]
    assert ids_of(await earlier.tasks({"status": ["working"], "order": "asc"})) == working
    _, later = await at_both(http, both.place, list_request({**FILTERS["status"], **ENVELOPE}), HEADERS)
    assert later.status == 404
    assert ids_of(await earlier.tasks({"status": ["working"], "order": "asc"})) == working


def test_the_2x_client_falls_back_to_a_server_of_2025_and_finds_it_filtering(python_sdk_json: Place) -> None:
    [said] = finish(start("either_era", python_sdk_json.direct, python_sdk_json.gateway))
    direct, through = said[python_sdk_json.direct], said[python_sdk_json.gateway]
    assert through["version"] == "2025-11-25"
    assert through["capabilities"]["tasks"]["list"] == {"filter": FILTER_CAPABILITY}
    through["capabilities"]["tasks"]["list"] = {}
    assert "taskgate/total" in through.pop("tasks")["_meta"]
    assert "taskgate/total" not in direct.pop("tasks").get("_meta", {})
    assert through == direct
