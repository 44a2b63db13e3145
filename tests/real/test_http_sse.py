"""The deprecated HTTP+SSE transport of 2024-11-05 passes (DESIGN 3.9).

There a GET opens a stream, whose first event, `endpoint`, names the address for messages. Every answer comes on that
stream, never in the response to the POST. So the gateway advertises and filters nothing there.
"""

import re

import pytest

from tests.real.conftest import Runner, Steps, blurred, finish, ids_of, start

FILTERED = ["that none match", "in an object", "that is bad"]
COMPARABLE = [
    "initialize",
    "tools/list",
    "tools/call",
    "tools/call unknown",
    "unknown method",
    "sampling",
    "progress",
    "create task",
    "tasks/cancel",
    "tasks/get",
    "tasks/list",
    *(f"tasks/list with a filter {name}" for name in FILTERED),
    "posted",
    "errors of the client",
]


@pytest.fixture(scope="module")
def said(runner: Runner) -> tuple[Steps, Steps]:
    """What the TypeScript SDK's client saw, straight and through."""
    with runner.everything("sse") as server, runner.gateway(server) as gateway:
        urls = [f"{process.wait()}/sse" for process in (server, gateway)]
        direct, through = finish(*(start("http_sse", url) for url in urls))
        return direct, through


def test_each_step_sees_through_the_gateway_what_it_sees_directly_and_nothing_is_filtered(
    said: tuple[Steps, Steps],
) -> None:
    direct, through = said
    for step in COMPARABLE:
        assert blurred(through[step]) == blurred(direct[step])
    assert through["initialize"]["capabilities"]["tasks"]["list"] == {}
    made = through["create task"]["created"]["task"]["taskId"]
    for name in FILTERED:
        assert ids_of(through[f"tasks/list with a filter {name}"]["result"]["tasks"]) == [made]


def test_the_servers_own_messages_come_on_the_stream_while_they_happen(said: tuple[Steps, Steps]) -> None:
    for steps in said:
        assert re.search(r"level.message - SessionId [0-9a-f-]{36}$", steps["notification"]["message"]["data"])
    _, through = said
    [content] = through["sampling"]["result"]["content"]
    assert "1 message(s), 100 tokens" in content["text"]
    times = through["times of progress"]
    # The last comes with the result.
    assert [seen["progress"] for seen in times["progress"]][:3] == [1, 2, 3]
    # A quarter of a second apart at the server: the first can only come early if nothing waits for the end.
    assert times["elapsed_ms"][0] < times["total_ms"] - 500
