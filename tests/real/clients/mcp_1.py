"""The Python SDK's client, 1.x: `python -m tests.real.clients.mcp_1 URL...`."""

from typing import Any

import httpx
from mcp import ClientSession, types
from mcp.client.auth import OAuthClientProvider, TokenStorage
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.auth import OAuthClientInformationFull, OAuthClientMetadata, OAuthToken
from pydantic import AnyUrl

from tests.real.clients.conversation import REDIRECT, SECONDS, Json, converse, run


class Kept(TokenStorage):
    """What a login leaves, in memory."""

    def __init__(self) -> None:
        self.tokens: OAuthToken | None = None
        self.client: OAuthClientInformationFull | None = None

    async def get_tokens(self) -> OAuthToken | None:
        return self.tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self.tokens = tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return self.client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        self.client = client_info


async def visit(url: str) -> Json:
    answered = httpx.URL()
    asked: list[str] = []

    async def note(request: httpx.Request) -> None:
        asked.append(str(request.url.copy_with(query=None)))

    async def redirect(to: str) -> None:
        nonlocal answered
        async with httpx.AsyncClient(event_hooks={"request": [note]}) as agent:
            answered = httpx.URL((await agent.get(to)).headers["location"])

    async def callback() -> tuple[str, str | None]:
        return answered.params["code"], answered.params.get("state")

    kept = Kept()
    metadata = OAuthClientMetadata(redirect_uris=[AnyUrl(REDIRECT)], client_name="taskgate-tests")
    auth = OAuthClientProvider(url, metadata, kept, redirect, callback)
    hooks = {"request": [note]}
    async with (
        httpx.AsyncClient(auth=auth, follow_redirects=True, event_hooks=hooks, timeout=SECONDS) as http,
        streamable_http_client(url, http_client=http) as (read, write, _),
        ClientSession(read, write) as session,
    ):
        initialized = await session.initialize()

        async def send(method: str, params: Json) -> Json:
            request: Any = types.Request[dict[str, Any], str](method=method, params=params)
            result = await session.send_request(request, types.Result)
            return result.model_dump(by_alias=True, mode="json")

        seen = await converse(send)
        capabilities = initialized.capabilities.model_dump(by_alias=True, mode="json", exclude_none=True)
        return {**seen, "capabilities": capabilities, "asked": asked, "logged_in": kept.tokens is not None}


def main() -> None:
    run(visit)


if __name__ == "__main__":
    main()
