"""The Python SDK's client, 2.x: `python -m tests.real.clients.mcp_2 URL...`, with what tests/real/second.txt names."""

from functools import partial
from typing import Any

import httpx2
import mcp_types as types
from mcp.client import Client
from mcp.client.auth import AuthorizationCodeResult, OAuthClientProvider
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.auth import OAuthClientMetadata
from pydantic import AnyUrl, ValidationError

from tests.real.clients.conversation import REDIRECT, SECONDS, Json, Kept, UserAgent, converse, run

RESULTS = {"tools/call": types.CreateTaskResult, "tasks/get": types.GetTaskResult, "tasks/list": types.ListTasksResult}


async def sent(session: Any, method: str, params: Json) -> Json:
    """A raw request: this SDK has no method for tasks, but types for their results."""
    request = types.Request[dict[str, Any], str](method=method, params=params)
    try:
        result = await session.send_request(request, RESULTS[method])
    except ValidationError:
        # It takes no task for the result of a call. The task is made all the same, and the list shows it.
        newest = await sent(session, "tasks/list", {"orderBy": "createdAt"})
        return {"task": newest["tasks"][0]}
    return result.model_dump(by_alias=True, mode="json", exclude_none=True)


async def visit(url: str) -> Json:
    agent, kept = UserAgent(httpx2), Kept()

    async def callback() -> AuthorizationCodeResult:
        code, state = await agent.callback()
        return AuthorizationCodeResult(code=code, state=state, iss=agent.answered.get("iss"))

    metadata = OAuthClientMetadata(redirect_uris=[AnyUrl(REDIRECT)], client_name="taskgate-tests")
    auth = OAuthClientProvider(url, metadata, kept, agent.redirect, callback)
    async with (
        httpx2.AsyncClient(auth=auth, event_hooks=agent.hooks, timeout=SECONDS) as http,
        Client(streamable_http_client(url, http_client=http)) as client,
    ):
        capabilities = client.server_capabilities.model_dump(by_alias=True, mode="json", exclude_none=True)
        seen = await converse(partial(sent, client.session))
        return {**seen, "capabilities": capabilities, "asked": agent.asked, "logged_in": kept.tokens is not None}


if __name__ == "__main__":
    run(visit)
