"""Lines on their way: what passes, when, and what stands between (DESIGN 11.1 to 11.3, 11.5)."""

import asyncio
import json

import msgspec
import pytest

from gateway.config import IndexLimits, StdioConfig
from gateway.mcp.task import NEVER, Moment
from gateway.stdio.line_channel import CANCELLED_MAX, Passed, Unanswered
from gateway.transport.memory_budget import SMALL_BYTES_MAX
from tests.launch import eventually
from tests.rules.plain import asked
from tests.stdio.conftest import SMALL
from tests.stdio.harness import QUERY_ALL, Stage, call, line, notification, result, task, through


async def test_a_query_that_meets_a_fault_of_ours_gets_an_error(caplog: pytest.LogCaptureFixture) -> None:
    """It got nothing. No file can say this `max_age`: no date is so long ago, which is a real exception."""
    async with through(StdioConfig(index=IndexLimits(max_age=1e13))) as stage:
        await stage.initialize()
        await stage.client.send(call("q", "tasks/list", taskIds=["a"]))
        await stage.answers(task("a"))
        await stage.client.hears(b'"id":"q"')
        error = stage.client.messages()[-1]["error"]
        assert error == {
            "code": -32603,
            "message": "Internal Server Error: a fault of taskgate itself; its log says more",
        }
        [told] = [r for r in caplog.records if r.message == "a request could not be handled"]
        assert told.exc_info is not None and told.exc_info[0] is ValueError
        await stage.client.send(call("r", "tools/list"))
        await stage.server.hears(b'"r"')


async def test_a_query_without_its_end_is_answered_and_a_half_line_waits_for_the_answers() -> None:
    async with through() as stage:
        await stage.client.send(call(1, "tasks/list", order="desc"), QUERY_ALL.rstrip())
        stage.client.finish()
        await stage.lists()
        await stage.client.until(lambda: len(stage.client.messages()) == 2, "both answers")
        await stage.server.ends()


async def test_a_large_half_line_at_the_end_of_input_does_not_hold_up_the_end() -> None:
    """A request of the gateway's own cannot follow it. The query waited for one, `drain_timeout` long."""
    patient = msgspec.structs.replace(SMALL.limits, drain_timeout=3600.0)
    async with through(StdioConfig(limits=patient)) as stage:
        await stage.initialize()
        await stage.client.send(QUERY_ALL)
        own = await stage.server.own()
        await stage.client.send(b'{"half":"' + b"x" * 3000)
        await stage.server.hears(b"xxx")
        await stage.server.send(result(own["id"], {"tasks": [], "nextCursor": "more"}))
        stage.client.finish()
        await stage.server.ends()
        await stage.client.hears(b'"id":"q"')
        assert "inside a line" in stage.client.messages()[-1]["error"]["message"]


async def test_the_errors_of_a_server_that_ends_stand_in_front_of_its_half_line(stage: Stage) -> None:
    await stage.client.send(QUERY_ALL)
    await stage.server.own()
    await stage.server.send(b'{"half":')
    stage.exit()
    await stage.client.ends()
    *_, error, half = stage.client.lines()
    error = json.loads(error)
    assert (error["id"], error["error"]["code"], half) == ("q", -32603, b'{"half":')


async def test_a_last_line_without_its_end_may_answer_the_gateway(stage: Stage) -> None:
    await stage.client.send(QUERY_ALL)
    await stage.server.send(result((await stage.server.own())["id"], {"tasks": [task("a")]}).rstrip())
    stage.exit()
    await stage.client.ends()
    assert [each["taskId"] for each in stage.client.messages()[-1]["result"]["tasks"]] == ["a"]


async def test_half_a_line_that_is_read_holds_up_no_answer(stage: Stage) -> None:
    await stage.client.send(QUERY_ALL, b'{"half":')
    own = await stage.server.own()
    await stage.server.send(result(own["id"], {"tasks": []}) + b'{"half":')
    await stage.client.hears(b'"id":"q"')
    await stage.client.send(b"1}\n")
    await stage.server.send(b"2}\n")
    await stage.server.hears(b'{"half":1}\n')
    await stage.client.hears(b'{"half":2}\n')


def large(message_id: object, last: bool | None, size: int = 5000) -> bytes:
    """A response that is too large to be read, its id in front as Python's, behind as TypeScript's, or within."""
    value = {"tasks": [], "x": "y" * size}
    if last is None:
        return line({"jsonrpc": "2.0", "x": 1, "result": value, "id": message_id, "extra": 1})
    if last:
        return line({"result": value, "jsonrpc": "2.0", "id": message_id})
    return line({"jsonrpc": "2.0", "id": message_id, "result": value})


@pytest.mark.parametrize("last", [False, True, None])
async def test_a_large_response_to_the_gateway_stays_here_and_is_an_error(small: Stage, last: bool | None) -> None:
    await small.client.send(QUERY_ALL)
    for number in (1, 2):  # once more, as after a dropped connection
        own = await small.server.own(number)
        response = large(own["id"], last)
        await small.server.send(response[:3000], response[3000:])
    await small.client.hears(b'"error"')
    error = small.client.messages()[-1]
    assert (error["id"], error["error"]["code"]) == ("q", -32603)
    assert b"yyy" not in small.client.received


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("size", [5000, 3_000_000])
async def test_a_large_line_of_anothers_passes_while_a_request_of_the_gateways_is_out(
    small: Stage, last: bool, size: int
) -> None:
    """Also where it is more than may be held. A notification passes at once."""
    await small.client.send(call(7, "tools/call"), QUERY_ALL)
    half, response = b'{"method":"notifications/message","params":"' + b"x" * 3000, large(7, last, size)
    await small.server.own()
    await small.server.send(half)
    await small.client.hears(half)
    await small.server.send(b'"}\n', response)
    await small.lists()
    await small.client.hears(b'"id":"q"')
    assert response in small.client.received


AGAIN = {
    "a result": lambda own: result(own, {"tasks": []}),
    "an error": lambda own: line({"jsonrpc": "2.0", "id": own, "error": {"code": -32603, "message": "?"}}),
    "its id a text": lambda own: result(str(own), {}),
    "its id escaped": lambda own: result(str(own), {}).replace(b'"2', b'"\\u0032'),
    "its id no integer": lambda own: result(float(own), {}),
    "its id last": lambda own: line({"result": {}, "jsonrpc": "2.0", "id": own}),
    "large": lambda own: large(own, last=False),
    "large, its id last": lambda own: large(own, last=True),
    "large, its id within": lambda own: line(
        {"jsonrpc": "2.0", "x": "y" * 5000, "id": own, "result": {"z": "y" * 5000}}
    ),
    "spaced": lambda own: (
        json.dumps({"id": own, "result": {}, "jsonrpc": "2.0"}, indent=1).replace("\n", "\r").encode() + b"\n"
    ),
}


@pytest.mark.parametrize("form", AGAIN)
async def test_an_answer_to_the_gateway_that_comes_once_more_stays_here(small: Stage, form: str) -> None:
    await small.client.send(QUERY_ALL)
    own = (await small.server.own())["id"]
    await small.server.send(result(own, {"tasks": []}))
    await small.client.hears(b'"id":"q"')
    await small.client.send(call(7, "tools/call"))
    before = len(small.client.received)
    response = large(7, last=True)
    await small.server.send(*[AGAIN[form](own)] * 3, response)
    await small.client.hears(b'"id":7')
    assert small.client.received[before:] == response


async def test_a_cancelled_request_waits_for_no_answer(stage: Stage) -> None:
    """The server need not answer it (MCP, Cancellation). Until now it was kept for ever."""
    await stage.client.send(call(7, "tools/call"), call(8, "tools/call"))
    await stage.client.send(notification("notifications/cancelled", requestId=7))
    await stage.server.hears(b"cancelled")
    assert stage.gauge("requests_in_flight") == {"stdio": 1}
    await stage.server.send(result(8, {}), result(7, {}))
    await stage.client.hears(result(7, {}))
    assert stage.gauge("requests_in_flight") == {"stdio": 0}


def request(message_id: int) -> tuple[bytes, Passed]:
    return b"%d" % message_id, Passed(asked(call(message_id, "tasks/get", taskId="a")), NEVER)


MANY = [f"+{number} x{number}" for number in range(CANCELLED_MAX + 3)]
# `+1`: a request of this id passes. `x1`: it is cancelled. `1!`, `1?`: a response comes, to the one that is known, or
# nobody knows to which. `=1`: so many wait for a response.
PASSED = {
    "an answer to a cancelled one is not taken for one to the next of its id": "+1 x1 +1 x1 +1 1? 1? 1? +1 1!",
    "one that reuses a cancelled id is counted and remembered": " ".join(["+1 x1 +1", *MANY[2:], "=1 1? =0 +1 =1 1?"]),
    "cancelled ones are forgotten in time": " ".join(["+0", *MANY[: CANCELLED_MAX + 1], f"=0 +0 +{CANCELLED_MAX}"])
    + f" 0! {CANCELLED_MAX}?",
}


@pytest.mark.parametrize("what", PASSED)
def test_which_request_a_response_answers(what: str) -> None:
    unanswered = Unanswered()
    for at, step in enumerate(PASSED[what].split()):
        if step[0] == "+":
            unanswered.note(*request(int(step[1:])))
        elif step[0] == "x":
            unanswered.cancel(step[1:].encode())
        elif step[0] == "=":
            assert len(unanswered) == int(step[1:]), at
        else:
            answered = unanswered.take(step[:-1].encode())
            assert (answered is not None and answered.is_clear) is (step[-1] == "!"), at


def test_a_response_to_one_of_several_requests_of_an_id_may_be_to_the_first() -> None:
    unanswered, moments = Unanswered(), [Moment(order, float(order)) for order in (1, 2)]
    for moment in moments:
        message_id, passed = request(1)
        unanswered.note(message_id, passed._replace(at=moment))
    answered = unanswered.take(b"1")
    assert answered is not None
    assert answered.at == moments[0]


async def test_a_query_that_fails_behind_its_progress_gets_one_error(stage: Stage) -> None:
    """It got two."""
    await stage.client.send(call(5, "tasks/list", order="asc", _meta={"progressToken": "p"}))
    own = await stage.server.own()
    await stage.server.send(result(own["id"], {"tasks": [task("a")], "nextCursor": "n"}))
    await stage.client.hears(b"notifications/progress")
    for number in (2, 3):  # the cursor, and the list that is begun anew for it
        own, error = await stage.server.own(number), {"code": -32603, "message": "no"}
        await stage.server.send(line({"jsonrpc": "2.0", "id": own["id"], "error": error}))
    await stage.server.send(notification("behind"))
    await stage.client.hears(b'"id":5')
    await stage.client.send(call(6, "tasks/list", status=["x"]))
    await stage.client.hears(b'"id":6')
    assert stage.client.received.count(b'"id":5') == 1


async def test_a_misspelt_criterion_is_named_in_the_servers_list_if_the_gateway_filters_there() -> None:
    for filters, names in ((False, b'"result":{"_meta":{"taskgate/ignored":["staus"]},"tasks":[]}'), (True, b"")):
        async with through() as stage:
            capabilities = {"tasks": {"list": {"filter": {"status": True}} if filters else {}}}
            await stage.client.send(call(0, "initialize"))
            await stage.server.hears(b'"initialize"')
            await stage.server.send(result(0, {"protocolVersion": "2025-11-25", "capabilities": capabilities}))
            await stage.client.hears(b'"protocolVersion"')
            await stage.client.send(call("n", "tasks/list", staus="failed"))
            await stage.server.hears(b'"id":"n"')
            await stage.server.send(result("n", {"tasks": []}))
            await stage.client.hears(names or b'"result":{"tasks":[]}')


@pytest.mark.parametrize("way", ["up", "down"])
async def test_a_slow_reader_slows_its_sender_down(way: str) -> None:
    async with through(SMALL) as stage:
        sender, reader = (stage.client, stage.server) if way == "up" else (stage.server, stage.client)
        reader.pause()
        data = b"x" * 10_000_000 + b"\n"
        sending = asyncio.create_task(sender.send(data))
        await asyncio.sleep(0.2)
        assert not sending.done()  # pipes and buffers hold less than 10 MB
        reader.resume()
        await sending
        await reader.until(lambda: len(reader.received) == len(data), "all of it")


async def test_a_side_that_takes_no_more_is_closed_towards_the_other() -> None:
    async with through() as stage:
        for one, other in ((stage.client, stage.server), (stage.server, stage.client)):
            one.leave()
            with pytest.raises(BrokenPipeError):
                for _ in range(200):
                    await other.send(notification("x"))
                    await asyncio.sleep(0.01)


async def test_of_too_many_queries_each_gets_an_answer() -> None:
    limits = msgspec.structs.replace(SMALL.limits, connections_max=2)
    async with through(msgspec.structs.replace(SMALL, limits=limits)) as stage:
        await stage.initialize()
        await stage.client.send(*(call(n, "tasks/list", order="asc") for n in (1, 2, 3)))
        await stage.client.hears(b'"id":3')
        assert "connections_max" in stage.client.messages()[-1]["error"]["message"]
        await stage.lists()
        await stage.client.hears(b'"id":1')
        await stage.client.hears(b'"id":2')


async def test_each_bad_query_of_a_client_that_does_not_read_gets_its_answer() -> None:
    """More of them than the gateway may hold, at a time when none can go out: inside a line of the server's."""
    count = 5000
    async with through(SMALL) as stage:
        await stage.initialize()
        await stage.answered()
        half = b'{"method":"' + b"m" * 3000
        await stage.server.send(half)
        await stage.client.hears(half)
        stage.client.pause()
        flood = b"".join(call(number, "tasks/list", status=["x"]) for number in range(count))
        sending = asyncio.create_task(stage.client.send(flood))
        held = 0

        async def is_held_up() -> bool:
            nonlocal held
            before, held = held, int(str(stage.gauge("held_bytes")))
            return held == before > SMALL_BYTES_MAX

        await eventually(is_held_up, "the client is not read any more")
        assert not sending.done() and held < SMALL.limits.held_bytes_max
        await stage.server.send(b'"}\n')
        stage.client.resume()
        await sending
        await stage.client.until(lambda: stage.client.received.count(b"-32602") == count, "all answers")


async def test_a_servers_refusal_goes_before_what_is_wrong_with_a_query(stage: Stage) -> None:
    """A server without `tasks.list` says so; -32602 once stood in its place."""
    await stage.client.send(call("w", "tasks/list", status=["x"]))
    own = await stage.server.own()
    refusal = {"code": -32601, "message": "Method not found", "data": [1]}
    await stage.server.send(line({"jsonrpc": "2.0", "id": own["id"], "error": refusal}))
    await stage.client.hears(b'"id":"w"')
    assert stage.client.messages()[-1]["error"] == refusal
