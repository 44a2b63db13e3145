"""FastMCP's client, 3.4 or 4.x: `python -m tests.real.clients.fastmcp_any URL...`, in the environment of either."""

import warnings
from typing import Any

from fastmcp import Client
from fastmcp.utilities.tests import HeadlessOAuth

from tests.real.clients.conversation import SECONDS, Json, converse, run

try:
    from tests.real.clients.mcp_2 import sent
except ImportError:
    from mcp import types

    async def sent(session: Any, method: str, params: Json) -> Json:
        request: Any = types.Request[dict[str, Any], str](method=method, params=params)
        result = await session.send_request(request, types.Result)
        dumped: Json = result.model_dump(by_alias=True, mode="json")
        return dumped


async def visit(url: str) -> Json:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of tokens that are kept in memory
        auth = HeadlessOAuth(url)
    async with Client[Any](url, auth=auth, timeout=SECONDS) as client:

        async def send(method: str, params: Json) -> Json:
            return await sent(client.session, method, params)

        seen = await converse(send)
        return {**seen, "logged_in": auth.context.current_tokens is not None}


def main() -> None:
    run(visit)


if __name__ == "__main__":
    main()
