"""The Python SDK's client, 1.x: `python -m tests.real.clients.mcp_1 URL...`."""

from functools import partial
from typing import Any

import httpx
from mcp import ClientSession, types
from mcp.client.auth import OAuthClientProvider
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.auth import OAuthClientMetadata
from pydantic import AnyUrl

from tests.real.clients.conversation import REDIRECT, SECONDS, Json, Kept, UserAgent, converse, run


async def sent(session: ClientSession, method: str, params: Json) -> Json:
    """The result of a raw request."""
    request: Any = types.Request[dict[str, Any], str](method=method, params=params)
    result = await session.send_request(request, types.Result)
    return result.model_dump(by_alias=True, mode="json", exclude_none=True)


async def visit(url: str) -> Json:
    agent, kept = UserAgent(httpx), Kept()
    metadata = OAuthClientMetadata(redirect_uris=[AnyUrl(REDIRECT)], client_name="taskgate-tests")
    auth = OAuthClientProvider(url, metadata, kept, agent.redirect, agent.callback)
    async with (
        httpx.AsyncClient(auth=auth, follow_redirects=True, event_hooks=agent.hooks, timeout=SECONDS) as http,
        streamable_http_client(url, http_client=http) as (read, write, _),
        ClientSession(read, write) as session,
    ):
        initialized = await session.initialize()
        seen = await converse(partial(sent, session))
        capabilities = initialized.capabilities.model_dump(by_alias=True, mode="json", exclude_none=True)
        return {**seen, "capabilities": capabilities, "asked": agent.asked, "logged_in": kept.tokens is not None}


def main() -> None:
    run(visit)


if __name__ == "__main__":
    main()
