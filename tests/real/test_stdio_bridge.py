"""A server on stdio behind HTTP: the recipe of docs/configuration.md, but for what npx would fetch, and for ports."""

import re
import shlex
from collections.abc import Iterator

import pytest

from tests.launch import ROOT
from tests.real.conftest import FILTER_CAPABILITY, Runner, connected, free_port, ids_of
from tests.tools import NODE, node

RECIPE = re.compile(r"## Servers on stdio\n.*?```sh\n(.*?)```", re.DOTALL)
PACKAGES = {
    "supergateway": "supergateway/dist/index.js",
    "@modelcontextprotocol/server-everything": "@modelcontextprotocol/server-everything/dist/index.js",
}


def recipe() -> tuple[list[str], str]:
    """The bridge's command, its port left out, and the upstream of the gateway, as the document says."""
    found = RECIPE.search((ROOT / "docs/configuration.md").read_text())
    assert found is not None
    text = found[1]
    for package, main in PACKAGES.items():
        text = text.replace(f"npx -y {package}", f"{node()} {NODE / 'node_modules' / main}")
    bridge, gateway = text.replace("\\\n", " ").strip().split("\n")
    command = shlex.split(bridge)
    port = command.pop()
    assert command.pop() == "--port"
    program, option, upstream = shlex.split(gateway)
    assert (program, option) == ("taskgate", "--upstream")
    assert f":{port}/" in upstream
    return command, upstream.partition(port)[2]


@pytest.fixture(scope="module")
def bridged(runner: Runner) -> Iterator[str]:
    command, path = recipe()
    port = free_port()
    with (
        runner.command("supergateway", [*command, "--port", str(port)], port) as bridge,
        runner.gateway(bridge) as gateway,
    ):
        bridge.wait()
        yield gateway.wait() + path


@pytest.mark.slow
async def test_the_tasks_of_a_server_on_stdio_are_filtered(bridged: str) -> None:
    async with connected(bridged) as client:
        assert client.listing == {"filter": FILTER_CAPABILITY}
        made = []
        for topic in ("one", "two"):
            call = client.session.experimental.call_tool_as_task
            created = await call("simulate-research-query", {"topic": topic, "ambiguous": False}, ttl=60000)
            made.append(created.task.taskId)
        assert set(ids_of(await client.tasks({"taskIds": made}))) == set(made)
        assert ids_of(await client.tasks({"orderBy": "createdAt", "order": "asc", "taskIds": made[1:]})) == made[1:]
        assert ids_of(await client.tasks({"status": ["failed", "cancelled"]})) == []
        await client.session.experimental.cancel_task(made[0])
        assert ids_of(await client.tasks({"status": ["cancelled"]})) == made[:1]
