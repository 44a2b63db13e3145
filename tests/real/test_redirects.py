"""An address that is not quite right: a Starlette server that redirects, and a path with nothing (DESIGN 8.14)."""

import json
from pathlib import Path
from typing import Final

import pytest

from gateway.http.address_rewriting import misplaced
from tests.launch import Gateways, Json, changes
from tests.real.conftest import Runner, Wire, bare_http
from tests.relay.messages import filtered

ADVICE: Final = "redirects to /mcp/: put that into url"
AT: Final = "http://a:1/mcp"


async def test_a_redirect_to_the_mounted_path_is_no_failure_and_says_what_to_do(runner: Runner, tmp_path: Path) -> None:
    """Each list counted as failed once: the alert TaskgateQueriesFailing at 50 %, and a page that blamed rights."""
    with runner.server("python_sdk", "--json", "--mounted") as server:
        upstream = {"url": f"{server.wait()}/mcp", "host": "preserve", "match": {"prefix": "/research"}}
        with Gateways(tmp_path).process(1, upstream=upstream, log={"level": "info"}) as gateway:
            async with bare_http() as http:
                http.follow_redirects = True
                before = await gateway.metrics()
                wire, _ = await Wire(f"http://127.0.0.1:{gateway.port}/research/mcp", http).initialize()
                for _ in range(5):
                    assert await wire.tasks({"status": ["working"]}) == []
                after = await gateway.metrics()
                gone = await http.post(wire.url + "/", json=filtered(), headers={**wire.headers, "mcp-session-id": "x"})
                assert gone.status_code == 404
            outcomes = {
                outcome: changes(before, after, "taskgate_queries_total", outcome=outcome)
                for outcome in ("failed", "refused", "refreshed", "index")
            }
            assert (outcomes["failed"], outcomes["refused"]) == (0, 5)
            assert outcomes["refreshed"] + outcomes["index"] == 5
            failed: list[Json] = [line for line in gateway.lines() if line["message"] == "failed"]
            told = {line["why"] for line in failed if "404" not in line["why"]}
            assert told == {f"the upstream answered 307: {ADVICE}"}
            assert "path" not in "".join(line["why"] for line in failed if "404" in line["why"]), "a session has ended"
            assert {line["method"] for line in failed} >= {"initialize", "tasks/list"}, "relayed ones too"
            reasons = json.loads(gateway.get("/page/status.json")[1])["reasons"]
            moved = [reason for reason in reasons if ADVICE in reason["why"]]
            assert {reason["failure"] for reason in moved} == {"UpstreamStatus 307", "UpstreamRefused 307"}
            assert not any(reason["is_fault"] for reason in moved)


@pytest.mark.parametrize(
    ("status", "location", "path", "words"),
    [
        (307, "/mcp/", "/mcp", ADVICE),
        (307, "/mcp/", "/mcp/", "redirects to /mcp/, as url has it: the client's path is wrong"),
        (404, "", "/mcp", "nothing is there: the path of url is wrong"),
        (404, "", "/mpc", "nothing is there: the client's path is wrong, url has /mpc"),
    ],
)
def test_whose_path_is_wrong(status: int, location: str, path: str, words: str) -> None:
    assert misplaced(status, location, f"{AT}?key=s3cr3t", path) == words
