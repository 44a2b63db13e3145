"""An address that is not quite right: a Starlette server that redirects, and a path with nothing (DESIGN 8.14)."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Final

import httpx
import pytest

from tests.forked import forked
from tests.launch import Gateway, Gateways, Json, Process, changes, eventually
from tests.real.conftest import Runner
from tests.relay.messages import call, filtered, response
from tests.upstream import in_a_thread

ADVICE: Final = "redirects to /mcp/: put that into url"
Post = Callable[[Json], Awaitable[httpx.Response]]
HERE: Final = {"accept": "application/json, text/event-stream", "mcp-protocol-version": "2025-11-25"}


@pytest.fixture(scope="module")
def mounted(runner: Runner) -> Iterator[Process]:
    with runner.server("python_sdk", "--json", "--mounted") as server:
        server.wait()
        yield server


@pytest.fixture
def gateways(tmp_path_factory: pytest.TempPathFactory) -> Gateways:
    return Gateways(tmp_path_factory.mktemp("redirects"))


@asynccontextmanager
async def session(url: str) -> AsyncIterator[Post]:
    async with httpx.AsyncClient(follow_redirects=True, headers=HERE) as http:

        async def post(message: Json) -> httpx.Response:
            return await http.post(url, json=message)

        client = {"name": "c", "version": "1"}
        opened = await post(call("initialize", protocolVersion="2025-11-25", capabilities={}, clientInfo=client))
        assert opened.status_code == 200, opened.text
        http.headers["mcp-session-id"] = opened.headers["mcp-session-id"]
        await post({"jsonrpc": "2.0", "method": "notifications/initialized"})
        yield post


def reasons(gateway: Gateway) -> list[Json]:
    found: list[Json] = json.loads(gateway.get("/page/status.json")[1])["reasons"]
    return found


def failed(gateway: Gateway) -> list[Json]:
    return [line for line in gateway.lines() if line["message"] == "failed"]


@pytest.mark.parametrize("host", ["upstream", "preserve"])
@pytest.mark.parametrize("prefix", [None, "/research"])
async def test_a_redirect_to_the_mounted_path_is_no_failure_and_says_what_to_do(
    mounted: Process, gateways: Gateways, host: str, prefix: str | None
) -> None:
    """Each list counted as failed once: the alert TaskgateQueriesFailing at 50 %, and a page that blamed rights."""
    upstream = {"url": f"{mounted.origin}/mcp", "host": host, "match": {"prefix": prefix}}
    with gateways.process(1, upstream=upstream, log={"level": "info"}) as gateway:
        url = f"http://127.0.0.1:{gateway.port}{prefix or ''}/mcp"
        async with session(url) as post:
            before = await gateway.metrics()
            for number in range(5):
                listed = await post(filtered(number))
                assert listed.status_code == 200 and listed.history[0].status_code == 307
                assert listed.json()["result"]["tasks"] == []
            after = await gateway.metrics()
        outcomes = {
            outcome: changes(before, after, "taskgate_queries_total", outcome=outcome)
            for outcome in ("failed", "refused", "refreshed", "index")
        }
        assert (outcomes["failed"], outcomes["refused"]) == (0, 5)
        assert outcomes["refreshed"] + outcomes["index"] == 5
        assert {line["why"] for line in failed(gateway)} == {f"the upstream answered 307: {ADVICE}"}
        assert {line["method"] for line in failed(gateway)} >= {"initialize", "tasks/list"}, "relayed ones too"
        assert all(ADVICE in reason["why"] and not reason["is_fault"] for reason in reasons(gateway))
        assert {reason["failure"] for reason in reasons(gateway)} == {"UpstreamStatus 307", "UpstreamRefused 307"}


async def test_what_it_says_is_right(mounted: Process, gateways: Gateways) -> None:
    with gateways.process(1, upstream={"url": f"{mounted.origin}/mcp/"}, log={"level": "info"}) as gateway:
        async with session(f"http://127.0.0.1:{gateway.port}/mcp/") as post:
            assert (await post(filtered(1))).history == []
        assert failed(gateway) == [] and reasons(gateway) == []
        async with session(f"http://127.0.0.1:{gateway.port}/mcp"):
            pass
        said = "redirects to /mcp/, as url has it: the client's path is wrong"
        assert {line["why"] for line in failed(gateway)} == {f"the upstream answered 307: {said}"}


async def test_where_all_is_404_the_path_is_wrong(gateways: Gateways) -> None:
    page = b'{"detail":"Not Found"}'
    with in_a_thread(lambda _head, _body: response(page, b"Content-Type: application/json", status=b"404 No")) as port:
        upstream = {"url": f"http://127.0.0.1:{port}/mpc"}
        with gateways.process(port, upstream=upstream, log={"level": "info"}) as gateway:
            async with httpx.AsyncClient(headers=HERE) as http:
                for path, messages in (("/mpc", (call("initialize"), filtered())), ("/other", (call("initialize"),))):
                    for message in messages:
                        at = f"http://127.0.0.1:{gateway.port}{path}?key=s3cr3t"
                        assert (await http.post(at, json=message)).status_code == 404
            await eventually(lambda: sum(line["count"] for line in failed(gateway)) == 3, "three lines")
            mine = "the upstream answered 404: nothing is there: the path of url is wrong"
            theirs = "the upstream answered 404: nothing is there: the client's path is wrong, url has /mpc"
            assert {line["why"] for line in failed(gateway)} == {mine, theirs}
            assert {reason["failure"] for reason in reasons(gateway)} == {"UpstreamStatus 404", "UpstreamRefused 404"}
            assert "s3cr3t" not in gateway.log + gateway.get("/page/status.json")[1]
            found = await gateway.metrics()
            assert found["taskgate_queries_total", (("outcome", "failed"), ("upstream", "up"))] == 0
        ended = await forked("try", f"http://127.0.0.1:{port}/mpc")
        assert (ended.returncode, "nothing is there: the path of url is wrong" in ended.stderr) == (2, True), ended


async def test_a_session_that_has_ended_is_no_wrong_path(mounted: Process, gateways: Gateways) -> None:
    with gateways.process(1, upstream={"url": f"{mounted.origin}/mcp/"}, log={"level": "info"}) as gateway:
        async with httpx.AsyncClient(headers={**HERE, "mcp-session-id": "gone"}) as http:
            for message in (filtered(), call("ping")):
                assert (await http.post(f"http://127.0.0.1:{gateway.port}/mcp/", json=message)).status_code == 404
        assert "path" not in "".join(line["why"] for line in failed(gateway))
