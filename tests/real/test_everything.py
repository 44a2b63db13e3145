"""The TypeScript SDK's client and the reference server: one conversation straight, the same through the gateway.

What a step saw through the gateway must be what it saw directly, but for ids, times and what is random; then come the
steps that only a filtering server can answer.
"""

import re
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import pytest

from tests.real.conftest import (
    FILTER_CAPABILITY,
    SDKS,
    Json,
    Runner,
    Steps,
    blurred,
    finish,
    ids_of,
    instant,
    selected,
    start,
)

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
def all_said(runner: Runner) -> Iterator[dict[str, Conversations]]:
    with ExitStack() as stack:
        servers = [stack.enter_context(runner.everything(sdk=version)) for version in SDKS]
        gateways = [stack.enter_context(runner.gateway(server)) for server in servers]
        begun = [start("everything", f"{server.wait()}/mcp") for server in servers]
        begun += [start("everything", f"{gateway.wait()}/mcp", "filtered") for gateway in gateways]
        steps = finish(*begun)
        pairs = zip(steps[: len(SDKS)], steps[len(SDKS) :], strict=True)
        yield {version: Conversations(*pair) for version, pair in zip(SDKS, pairs, strict=True)}


@pytest.fixture(scope="module", params=SDKS)
def said(request: pytest.FixtureRequest, all_said: dict[str, Conversations]) -> Conversations:
    return all_said[request.param]


def listed(pages: list[Json]) -> list[Json]:
    return [task for page in pages for task in page["tasks"]]


# What passes through


@pytest.mark.parametrize("step", COMPARABLE)
def test_each_step_sees_through_the_gateway_what_it_sees_directly(said: Conversations, step: str) -> None:
    assert blurred(said.through[step]) == blurred(said.direct[step])


def test_initialize_differs_in_the_filter_capability_alone(said: Conversations) -> None:
    direct, through = said.direct["initialize"], said.through["initialize"]
    assert direct["capabilities"]["tasks"]["list"] == {}
    assert through["capabilities"]["tasks"]["list"] == {"filter": FILTER_CAPABILITY}
    capabilities = through["capabilities"] | {"tasks": through["capabilities"]["tasks"] | {"list": {}}}
    assert through | {"capabilities": capabilities} == direct


def test_the_echo_keeps_every_character(said: Conversations) -> None:
    [content] = said.through["tools/call echo"]["result"]["content"]
    assert content["text"] == "Echo: h\u00e9llo\u2028\U0001f600"


def test_a_request_of_the_server_on_the_get_stream_is_answered(said: Conversations) -> None:
    step = said.through["roots on the GET stream"]
    assert step["asked"] == 1
    assert [message["data"] for message in step["logged"]] == ["Roots updated: 1 root(s) received from client"]


def test_log_messages_come_on_the_get_stream(said: Conversations) -> None:
    message = said.through["logging on the GET stream"]["message"]
    assert re.search(r"level.message - SessionId [0-9a-f-]{36}$", message["data"])


def test_progress_comes_while_it_happens(said: Conversations) -> None:
    step = said.through["progress on the POST stream"]
    assert [seen["progress"] for seen in step["progress"]] == [1, 2, 3, 4]
    # A quarter of a second apart at the server: the first can only come early if nothing waits for the end.
    assert step["progress"][0]["elapsed_ms"] < step["elapsed_ms"] - 500
    assert step["result"] == said.direct["progress on the POST stream"]["result"]


def test_the_sampling_request_is_answered(said: Conversations) -> None:
    [content] = said.through["sampling on the POST stream"]["result"]["content"]
    assert "1 message(s), 100 tokens" in content["text"]


def test_the_elicitation_is_answered_on_the_stream_of_tasks_result(said: Conversations) -> None:
    step = said.through["tasks/result with elicitation"]
    assert len(step["elicited"]) == 1
    [content] = step["result"]["content"]
    assert "**Clarification**: snake" in content["text"]
    assert said.through["tasks/get after the result"]["task"]["status"] == "completed"


def test_the_unfiltered_list_has_the_pages_of_the_server(said: Conversations) -> None:
    for steps in (said.direct, said.through):
        pages = steps["tasks/list unfiltered"]["pages"]
        assert [len(page["tasks"]) for page in pages] == [PAGE_SIZE_UPSTREAM, TASKS - PAGE_SIZE_UPSTREAM]
        assert pages[0]["nextCursor"] == pages[0]["tasks"][-1]["taskId"]
        assert "taskgate/total" not in pages[0]["_meta"]


def test_the_ended_session_is_refused_as_this_server_refuses_it(said: Conversations) -> None:
    """The reference server forgets the session, and answers 400 where the specification has 404."""
    assert said.through["after DELETE"]["answer"]["status"] == 400


# What the gateway answers


def test_a_cancelled_task_is_found_at_once(said: Conversations) -> None:
    [page] = said.through["filtered after cancel"]["pages"]
    cancelled = said.through["cancel task"]["result"]
    assert [cancelled] == [{**task, "_meta": cancelled["_meta"]} for task in page["tasks"]]


def test_a_task_that_waits_for_input_is_found(said: Conversations) -> None:
    [page] = said.through["filtered while input is required"]["pages"]
    assert ids_of(page["tasks"]) == [said.through["input required"]["task"]["taskId"]]


def test_each_filtered_list_is_what_its_criteria_mean(said: Conversations) -> None:
    tasks = listed(said.through["tasks/list unfiltered"]["pages"])
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


def test_a_filtered_list_in_the_ended_session_is_refused_as_anything_else(said: Conversations) -> None:
    refused = said.through["filtered after DELETE"]["answer"]
    assert refused == said.through["after DELETE"]["answer"]
