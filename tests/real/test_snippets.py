"""The examples of docs/clients.md and of the README, as they stand there, against the demo's server.

Each runs with the packages that its section is about; an example of a line or two gets a session.
"""

import importlib
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.forked import fork_of
from tests.launch import ROOT, started
from tests.tools import NODE, node, second, tool

SECONDS = 60
URL = "http://127.0.0.1:8080/mcp"
BLOCK = re.compile(r"^```(python|js|bash)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# What an example of a line stands in, by its language.
FRAMES = {
    "python": """
import asyncio
from mcp import ClientSession
from mcp.client.streamable_http import streamable_http_client

async def main():
    async with streamable_http_client("{url}") as (read, write, _), ClientSession(read, write) as session:
        await session.initialize()
        {lines}
        print([(task.taskId, task.status) for task in page.tasks], page.meta)

asyncio.run(main())
""",
    "js": """
import {{ Client }} from "@modelcontextprotocol/sdk/client/index.js";
import {{ StreamableHTTPClientTransport }} from "@modelcontextprotocol/sdk/client/streamableHttp.js";

const client = new Client({{ name: "example", version: "1" }});
await client.connect(new StreamableHTTPClientTransport(new URL("{url}")));
{lines}
console.log(page.tasks, page._meta);
await client.close();
""",
}
FASTMCP_3 = """
import asyncio
from fastmcp import Client

async def main():
    async with Client("{url}") as client:
        session = client.session
        {lines}
        print([(task.taskId, task.status) for task in page.tasks], page.meta)

asyncio.run(main())
"""


@dataclass(frozen=True)
class Example:
    name: str
    language: str
    text: str

    @property
    def program(self) -> str:
        if self.language == "bash" or "import " in self.text:
            return self.text
        return FRAMES[self.language].format(lines=self.text.strip(), url=URL)

    def command(self, url: str) -> list[str]:
        assert URL in self.program
        program = self.program.replace(URL, url)
        if self.language == "bash":
            tool("curl", "curl")
            return ["bash", "-euo", "pipefail", "-c", program]
        if self.language == "js":
            return [node(), "--input-type=module", "--eval", program]
        return [second() if "mcp_types" in program else sys.executable, "-W", "ignore", "-c", program]


def examples() -> list[Example]:
    """Every program in the documents for clients; those of the Python SDKs with FastMCP too, as its section says."""
    found = []
    for name in ("README.md", "docs/clients.md"):
        text = (ROOT / name).read_text()
        for number, block in enumerate(BLOCK.finditer(text), 1):
            headings = re.findall(r"^#+ (.*)$", text[: block.start()], re.MULTILINE)
            found.append(Example(f"{name}: {headings[-1]} ({number})", block[1], block[2]))
    for one in found.copy():
        if "from mcp import Client\n" in one.text:
            text = one.text.replace("from mcp import", "from fastmcp import")
            found.append(Example(f"{one.name}, FastMCP 4", one.language, text))
        elif one.language == "python" and "import " not in one.text:
            text = FASTMCP_3.format(lines=one.text.strip(), url=URL)
            found.append(Example(f"{one.name}, FastMCP 3", one.language, text))
    return found


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    log = tmp_path_factory.mktemp("demo") / "demo.log"
    command = [sys.executable, "-m", "gateway", "demo"]

    def serves() -> bool:
        return "Ctrl-C ends it" in log.read_text()

    with started("taskgate demo", command, log, "", serves, start=fork_of) as process:
        process.wait()
        found = re.search(r"^  taskgate +(http://.*)$", log.read_text(), re.MULTILINE)
        assert found is not None
        yield found[1]


def test_the_documents_have_an_example_for_each_client() -> None:
    programs = "\n".join(example.program for example in examples())
    for what in (
        "from mcp import ClientSession", "from mcp import Client\n", "from fastmcp import Client", "curl",
        "@modelcontextprotocol/sdk/", "@modelcontextprotocol/client", "taskgate:?", "nextCursor",
    ):  # fmt: skip
        assert what in programs
    assert len(examples()) >= 10


@pytest.mark.parametrize("example", examples(), ids=lambda example: example.name)
def test_an_example_shows_a_filtered_page(demo: str, example: Example, tmp_path: Path) -> None:
    if example.command(demo)[0] == sys.executable and "fastmcp" in example.program:
        importlib.import_module("fastmcp")  # once for all examples: that takes longer than they do
    out = tmp_path / "out"
    with started("the example", example.command(demo), out, "", out.exists, tree=NODE, start=fork_of) as process:
        assert process.popen.wait(SECONDS) == 0, process.tail()
    said = out.read_text()
    assert "taskgate/total" in said
    assert re.search(r"\b(working|input_required)\b", said)
    assert not re.search(r"\b(completed|failed|cancelled)\b", said)
    assert "False" not in said and "false" not in said  # whether filtering is there
