"""The TypeScript SDK's client and the reference server: one conversation straight, the same through the gateway.

What a step saw through the gateway must be what it saw directly, but for ids, times and what is random; then come the
steps that only a filtering server can answer.
"""

import re
from dataclasses import dataclass

import pytest

from tests.real.conftest import FILTER_CAPABILITY, Runner, Steps, blurred, finish, ids_of, instant, selected, start

TASKS = 13
PAGE_SIZE_UPSTREAM = 10
COMPARABLE = [
    *("cancel task", "roots on the GET stream", "tools/list", "tools/call echo", "resources/list"),
    *("resources/read", "resources/templates/list", "prompts/list", "prompts/get", "tools/call unknown"),
    *("sampling on the POST stream", "input required", "tasks/result with elicitation"),
    *("tasks/get after the result", "errors of the client", "unknown method", "after DELETE"),
]


@dataclass(frozen=True)
class Conversations:
    direct: Steps
    through: Steps


@pytest.fixture(scope="module")
def said(runner: Runner) -> Conversations:
    with runner.everything() as server, runner.gateway(server) as gateway:
        begun = start("everything", f"{server.wait()}/mcp"), start("everything", f"{gateway.wait()}/mcp", "filtered")
        return Conversations(*finish(*begun))


# What passes through


def test_each_step_sees_through_the_gateway_what_it_sees_directly(said: Conversations) -> None:
    for step in COMPARABLE:
        assert blurred(said.through[step]) == blurred(said.direct[step])
    direct, through = said.direct["initialize"], said.through["initialize"]
    assert direct["capabilities"]["tasks"]["list"] == {}
    assert through["capabilities"]["tasks"]["list"] == {"filter": FILTER_CAPABILITY}
    through["capabilities"]["tasks"]["list"] = {}
    assert through == direct
    [content] = said.through["tools/call echo"]["result"]["content"]
    assert content["text"] == "Echo: h\u00e9llo\u2028\U0001f600"
    # The reference server forgets an ended session, and answers 400 where the specification has 404.
    assert said.through["after DELETE"]["answer"]["status"] == 400


def test_the_servers_own_messages_come_on_both_streams_while_they_happen(said: Conversations) -> None:
    step = said.through["roots on the GET stream"]
    assert step["asked"] == 1
    assert [message["data"] for message in step["logged"]] == ["Roots updated: 1 root(s) received from client"]
    message = said.through["logging on the GET stream"]["message"]
    assert re.search(r"level.message - SessionId [0-9a-f-]{36}$", message["data"])
    assert "1 message(s), 100 tokens" in str(said.through["sampling on the POST stream"]["result"])
    step = said.through["tasks/result with elicitation"]
    assert len(step["elicited"]) == 1 and "**Clarification**: snake" in str(step["result"])
    step = said.through["progress on the POST stream"]
    assert [seen["progress"] for seen in step["progress"]] == [1, 2, 3, 4]
    # A quarter of a second apart at the server: the first can only come early if nothing waits for the end.
    assert step["progress"][0]["elapsed_ms"] < step["elapsed_ms"] - 500
    assert step["result"] == said.direct["progress on the POST stream"]["result"]


def test_the_unfiltered_list_has_the_pages_of_the_server(said: Conversations) -> None:
    for steps in (said.direct, said.through):
        pages = steps["tasks/list unfiltered"]["pages"]
        assert [len(page["tasks"]) for page in pages] == [PAGE_SIZE_UPSTREAM, TASKS - PAGE_SIZE_UPSTREAM]
        assert pages[0]["nextCursor"] == pages[0]["tasks"][-1]["taskId"]
        assert "taskgate/total" not in pages[0]["_meta"]


# What the gateway answers


def test_what_passed_is_found_at_once_and_an_ended_session_is_refused_as_ever(said: Conversations) -> None:
    [page] = said.through["filtered after cancel"]["pages"]
    cancelled = said.through["cancel task"]["result"]
    assert [cancelled] == [{**task, "_meta": cancelled["_meta"]} for task in page["tasks"]]
    [page] = said.through["filtered while input is required"]["pages"]
    assert ids_of(page["tasks"]) == [said.through["input required"]["task"]["taskId"]]
    assert said.through["filtered after DELETE"]["answer"] == said.through["after DELETE"]["answer"]


def test_each_filtered_list_is_what_its_criteria_mean(said: Conversations) -> None:
    tasks = [task for page in said.through["tasks/list unfiltered"]["pages"] for task in page["tasks"]]
    assert len(tasks) == TASKS
    answers = said.through["filtered"]["answers"]
    assert len(answers) == 14
    for answer in answers:
        criteria, [page] = answer["criteria"], answer["pages"]
        assert (criteria, ids_of(page["tasks"])) == (criteria, selected(tasks, criteria))
        assert page["_meta"]["taskgate/total"] == len(page["tasks"])
        instant(page["_meta"]["taskgate/asOf"])
        for task in page["tasks"]:
            assert task in tasks


def test_a_bad_timestamp_is_refused_by_name(said: Conversations) -> None:
    error = said.through["bad timestamp"]["error"]
    assert error["code"] == -32602
    assert "createdAfter" in error["message"]
    assert "yesterday" in error["message"]
    assert len(error["data"]["errors"]) == 1


# The transport of 2024-11-05 (DESIGN 3.9): every answer comes on the stream that a GET opened, whose first event names
# the address for messages. The gateway advertises and filters nothing there.

FILTERED = ["that none match", "in an object", "that is bad"]
OVER_SSE = [
    *("initialize", "tools/list", "tools/call", "tools/call unknown", "unknown method", "sampling", "progress"),
    *("create task", "tasks/cancel", "tasks/get", "tasks/list", "posted", "errors of the client"),
    *(f"tasks/list with a filter {name}" for name in FILTERED),
]


@pytest.fixture(scope="module")
def over_sse(runner: Runner) -> tuple[Steps, Steps]:
    """What the TypeScript SDK's client saw, straight and through."""
    with runner.everything("sse") as server, runner.gateway(server) as gateway:
        urls = [f"{process.wait()}/sse" for process in (server, gateway)]
        direct, through = finish(*(start("http_sse", url) for url in urls))
        return direct, through


def test_over_sse_each_step_sees_through_the_gateway_what_it_sees_directly_and_nothing_is_filtered(
    over_sse: tuple[Steps, Steps],
) -> None:
    direct, through = over_sse
    for step in OVER_SSE:
        assert blurred(through[step]) == blurred(direct[step])
    assert through["initialize"]["capabilities"]["tasks"]["list"] == {}
    made = through["create task"]["created"]["task"]["taskId"]
    for name in FILTERED:
        assert ids_of(through[f"tasks/list with a filter {name}"]["result"]["tasks"]) == [made]


def test_over_sse_the_servers_own_messages_come_on_the_stream_while_they_happen(over_sse: tuple[Steps, Steps]) -> None:
    for steps in over_sse:
        assert re.search(r"level.message - SessionId [0-9a-f-]{36}$", steps["notification"]["message"]["data"])
    _, through = over_sse
    [content] = through["sampling"]["result"]["content"]
    assert "1 message(s), 100 tokens" in content["text"]
    times = through["times of progress"]
    # The last comes with the result.
    assert [seen["progress"] for seen in times["progress"]][:3] == [1, 2, 3]
    # A quarter of a second apart at the server: the first can only come early if nothing waits for the end.
    assert times["elapsed_ms"][0] < times["total_ms"] - 500
