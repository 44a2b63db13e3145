"""FastMCP's client, 3.4 or 4.x: `python -m tests.real.clients.fastmcp_any URL...`, in the environment of either."""

import warnings
from functools import partial
from typing import Any

from fastmcp import Client
from fastmcp.utilities.tests import HeadlessOAuth

from tests.real.clients.conversation import SECONDS, Json, converse, run

try:
    from tests.real.clients.mcp_2 import sent
except ImportError:
    from tests.real.clients.mcp_1 import sent


async def visit(url: str) -> Json:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of tokens that are kept in memory
        auth = HeadlessOAuth(url)
    async with Client[Any](url, auth=auth, timeout=SECONDS) as client:
        seen = await converse(partial(sent, client.session))
        return {**seen, "logged_in": auth.context.current_tokens is not None}


def main() -> None:
    run(visit)


if __name__ == "__main__":
    main()
